from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepshape.domain.request_rules import RequestFacts, RequestLimits, RequestRefusal, refuse_request

LIMITS = RequestLimits(vocab_size=300, max_model_len=128)


def refuse(**asked: Any) -> RequestRefusal | None:
    return refuse_request(RequestFacts(**{"prompt_tokens": 5, **asked}), LIMITS)


def test_an_ordinary_request_passes() -> None:
    assert refuse() is None
    assert refuse(logit_bias_ids=(0, 299), stop_token_ids=(2,), allowed_token_ids=(7, 8), banned_token_ids={7}) is None
    assert refuse(prompt_tokens=127) is None
    assert refuse(allowed_token_ids=(2, 7), held_back_token_ids={2}) is None


@pytest.mark.parametrize(
    ("asked", "parameter", "value", "start"),
    [
        ({"pooling": True}, "task", "pooling", "pooling is not supported"),
        ({"prompt_embeds": True, "prompt_tokens": None}, "prompt_embeds", None, "prompt embeddings are not supported"),
        ({"prompt_logprobs": 0}, "prompt_logprobs", 0, "prompt_logprobs is not supported"),
        ({"prompt_logprobs": 3}, "prompt_logprobs", 3, "prompt_logprobs is not supported"),
        ({"prompt_tokens": 128}, "input_tokens", 128, "the prompt has 128 tokens and max_model_len=128 leaves no room"),
        (
            {"logit_bias_ids": (1, 300, -1)},
            "logit_bias",
            [-1, 300],
            "logit_bias names token -1, outside the vocabulary",
        ),
        ({"stop_token_ids": (400,)}, "stop_token_ids", [400], "stop_token_ids names token 400, outside the vocabulary"),
        ({"allowed_token_ids": (300,)}, "allowed_token_ids", [300], "allowed_token_ids names token 300"),
        ({"allowed_token_ids": ()}, "allowed_token_ids", [], "allowed_token_ids is empty"),
        (
            {"allowed_token_ids": (9, 7), "banned_token_ids": {7, 8, 9}},
            "allowed_token_ids",
            [7, 9],
            "every token of allowed_token_ids is banned by bad_words",
        ),
        (
            {"allowed_token_ids": (2, 7), "banned_token_ids": {7}, "held_back_token_ids": {2}},
            "allowed_token_ids",
            [2, 7],
            "every token of allowed_token_ids ends the text and min_tokens holds those back",
        ),
    ],
)
def test_each_refusal_names_the_parameter_and_the_value(
    asked: dict[str, Any], parameter: str, value: Any, start: str
) -> None:
    refusal = refuse(**asked)
    assert refusal is not None
    assert (refusal.parameter, refusal.value) == (parameter, value)
    assert refusal.message.startswith(start)
    assert "; " in refusal.message


_IDS = st.sets(st.integers(-2, 8))


@given(allowed=st.none() | _IDS, banned=_IDS, held=_IDS)
def test_a_request_that_passes_always_has_a_first_token(
    allowed: set[int] | None, banned: set[int], held: set[int]
) -> None:
    request = RequestFacts(allowed_token_ids=allowed, banned_token_ids=banned, held_back_token_ids=held)
    if refuse_request(request, RequestLimits(vocab_size=6, max_model_len=8)) is None and allowed is not None:
        assert (allowed & set(range(6))) - banned - held
