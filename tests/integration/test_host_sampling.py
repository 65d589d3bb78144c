"""Rows sampled on the host: vLLM's own sampler over exactly those rows, whatever joins and leaves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from stepshape.adapters.vllm.host_sampling import NOT_A_NUMBER, GrammarMask, HostBatch, HostRow
from stepshape.adapters.vllm.outputs import NOTHING_LEFT

VOCAB = 64


@pytest.fixture(scope="module")
def vllm_config(tmp_path_factory: pytest.TempPathFactory) -> Any:
    from vllm import EngineArgs

    from ..checkpoints import tiny_llama

    folder: Path = tiny_llama(tmp_path_factory.mktemp("llama"))
    return EngineArgs(model=str(folder), max_model_len=128, block_size=16).create_engine_config()


@pytest.fixture
def batch(vllm_config: Any) -> HostBatch:
    from vllm.v1.sample.logits_processor import build_logitsprocs
    from vllm.v1.sample.sampler import Sampler

    return HostBatch(
        vocab_size=VOCAB,
        sampler=Sampler(),
        processors=lambda: build_logitsprocs(vllm_config, torch.device("cpu"), False, False, ()),
    )


def row(name: str, prompt: list[int] | None = None, outputs: list[int] | None = None, **params: Any) -> HostRow:
    from vllm import SamplingParams

    prompt = [1, 2] if prompt is None else prompt
    outputs = [] if outputs is None else outputs
    return HostRow(request_id=name, row=0, params=SamplingParams(**params), prompt=prompt, outputs=outputs)


def logits(n: int, seed: int = 0) -> torch.Tensor:
    return torch.randn((n, VOCAB), generator=torch.Generator().manual_seed(seed))


def test_each_row_gets_what_it_asked_for(batch: HostBatch) -> None:
    """15: every parameter takes effect, side by side."""
    base = logits(5)
    best = base.argmax(-1).tolist()
    rows = [
        row("greedy", temperature=0.0),
        row("bias", temperature=0.0, logit_bias={7: 100.0}),
        row("allowed", temperature=0.0, allowed_token_ids=[3, 9]),
        row("penalty", prompt=[best[3]], outputs=[best[3]] * 3, temperature=0.0, repetition_penalty=100.0),
        row("min_p", temperature=1.0, min_p=1.0),
    ]
    result = batch.sample(rows, base.clone(), None)
    assert result.tokens[0] == best[0]
    assert result.tokens[1] == 7
    assert result.tokens[2] == (3 if base[2, 3] > base[2, 9] else 9)
    assert result.tokens[3] != best[3]
    assert result.tokens[4] == best[4]  # min_p = 1 leaves the best alone
    assert result.failed == {}
    assert rows[0].outputs == [best[0]]


def test_min_tokens_holds_the_end_token_back_until_then(batch: HostBatch) -> None:
    """23"""
    only_end = torch.full((1, VOCAB), 0.0)
    only_end[0, 5] = 10.0
    only_end[0, 8] = 5.0
    held = row("held", temperature=0.0, min_tokens=2, stop_token_ids=[5])
    tokens = [batch.sample([held], only_end.clone(), None).tokens[0] for _ in range(3)]
    assert tokens == [8, 8, 5]


def test_rows_join_and_leave_and_keep_their_own_parameters(batch: HostBatch) -> None:
    """A newcomer takes the place of one that left, the tail fills the other holes; nobody inherits anything."""
    rows = {name: row(name, temperature=0.0, logit_bias={i + 10: 100.0}) for i, name in enumerate("abcdef")}
    for present in ("abc", "abcdef", "af", "gaf", "gbe", "e", "abcdef"):
        wanted = [rows.setdefault(name, row(name, temperature=0.0)) for name in present]
        values = logits(len(wanted), seed=len(present))
        tokens = batch.sample(wanted, values.clone(), None).tokens
        for i, name in enumerate(present):
            expected = int(values[i].argmax()) if name == "g" else 10 + "abcdef".index(name)
            assert tokens[i] == expected, (present, name)


def test_seeds_follow_the_request(batch: HostBatch) -> None:
    """17: the n-th token depends on (seed, n) alone, whoever is in the batch and however often it was left out."""
    values = [logits(1, seed=n) for n in range(6)]
    alone = row("alone", temperature=1.0, seed=42)
    stream = [batch.sample([alone], v.clone(), None).tokens[0] for v in values]
    seeded, other = row("seeded", temperature=1.0, seed=42), row("other", temperature=1.0, seed=42)
    mixed = []
    for n, v in enumerate(values):
        if n == 3:  # the others go on without it for two steps
            batch.sample([other], logits(1), None)
            batch.sample([other, row("late", temperature=1.0)], logits(2), None)
        company = [row(f"x{n}", temperature=0.9), seeded, other]
        mixed.append(batch.sample(company, torch.cat([logits(1), v, logits(1)]), None).tokens[1])
    assert mixed == stream
    resumed = row("resumed", outputs=stream[:2], temperature=1.0, seed=42)  # after a preemption
    assert batch.sample([resumed], values[2].clone(), None).tokens == [stream[2]]


def test_unseeded_rows_differ_after_equal_seeds(batch: HostBatch) -> None:
    """18: a seed is not left behind on a row."""
    flat = torch.zeros((8, VOCAB))
    seeded = [row(f"s{i}", temperature=1.0, seed=5) for i in range(8)]
    assert len(set(batch.sample(seeded, flat.clone(), None).tokens)) == 1
    users = [row(f"u{i}", temperature=1.0, top_k=40) for i in range(8)]
    assert len(set(batch.sample(users, flat.clone(), None).tokens)) > 1


def test_logprobs_of_full_length_for_those_who_asked(batch: HostBatch) -> None:
    """24: 0 is a request for the sampled token's own."""
    values = logits(3)
    result = batch.sample(
        [row("a", temperature=0.0, logprobs=0), row("b", temperature=0.0, logprobs=5), row("c", temperature=0.0)],
        values.clone(),
        None,
    )
    assert result.logprobs is not None
    assert tuple(result.logprobs.logprobs.shape) == (3, 6)
    expected = values.log_softmax(-1)
    for i in range(3):
        assert result.logprobs.logprob_token_ids[i, 0] == result.tokens[i]
        torch.testing.assert_close(result.logprobs.logprobs[i, 0], expected[i, result.tokens[i]])
        assert int(result.logprobs.selected_token_ranks[i]) == 1


def test_a_grammar_mask_reaches_its_row_and_no_other(batch: HostBatch) -> None:
    """26: matched by request, not by order."""
    mask = np.zeros((1, 2), np.int32)
    mask[0, 0] = 1 << 4  # token 4 alone
    values = logits(3)
    rows = [row("free", temperature=0.0), row("bound", temperature=0.7), row("free too", temperature=0.0)]
    grammar = GrammarMask(request_ids=["gone", "bound"], bitmask=np.vstack([mask * 0, mask]))
    result = batch.sample(rows, values.clone(), grammar)
    assert result.tokens == [int(values[0].argmax()), 4, int(values[2].argmax())]


def test_impossible_rows_fail_alone(batch: HostBatch) -> None:
    """21: and a device that returns NaN for one row does not take the others with it."""
    values = logits(3)
    values[2, 17] = float("nan")
    none_left = GrammarMask(request_ids=["none"], bitmask=np.zeros((1, 2), np.int32))
    rows = [row("fine", temperature=0.0), row("none", temperature=1.0), row("nan", temperature=1.0)]
    result = batch.sample(rows, values.clone(), none_left)
    assert result.failed == {1: NOTHING_LEFT, 2: NOT_A_NUMBER}
    assert result.tokens[0] == int(values[0].argmax())
    assert rows[1].outputs == rows[2].outputs == []
    again = batch.sample(rows[:1], values[:1].clone(), None)
    assert again.failed == {}
