"""The n-th token's randomness depends on the request's seed and n alone (field cases 17 and 18)."""

from __future__ import annotations

from typing import Any

import pytest

from ..server import ServerUnderTest

DEVICE = {"top_k": 20}
HOST = {"top_k": 20, "min_p": 0.01}


def seeded(prompt: str, seed: int, tokens: int = 40, **parameters: Any) -> dict[str, Any]:
    return {
        "prompt": prompt,
        "seed": seed,
        "temperature": 1.0,
        "max_tokens": tokens,
        "ignore_eos": True,
        **parameters,
    }


@pytest.mark.parametrize("where", [DEVICE, HOST], ids=["device", "host"])
def test_the_stream_follows_the_request_in_any_mix(served: ServerUnderTest, where: dict[str, Any]) -> None:
    alone = served.completion(**seeded("sea", 7, **where))["token_ids"]
    # Neighbours of uneven length: rows are freed and taken again while this one goes on, in every lane.
    others = [seeded("x" * (1 + 9 * i), i, tokens=3 + 2 * i, top_k=20) for i in range(12)]
    unseeded = [{"prompt": "free", "temperature": 1.0, "max_tokens": 5 + i} for i in range(6)]
    mixed = served.completions([*others, seeded("sea", 7, **where), *unseeded, seeded("sea", 7, **where)])
    assert mixed[12]["token_ids"] == alone
    assert mixed[-1]["token_ids"] == alone
    assert served.completion(**seeded("sea", 8, **where))["token_ids"] != alone


def test_unseeded_users_on_rows_that_had_a_seed_differ(served: ServerUnderTest) -> None:
    rows = 32
    same = served.completions([seeded("sea", 3, tokens=12, **DEVICE)] * rows)
    assert len({tuple(answer["token_ids"]) for answer in same}) == 1
    user = {"prompt": "sea", "temperature": 1.0, "top_k": 10, "max_tokens": 24, "ignore_eos": True}
    free = served.completions([user] * rows)
    assert len({tuple(answer["token_ids"]) for answer in free}) == rows
