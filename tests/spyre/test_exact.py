"""Without rounding the card computes in fp32: greedy text is that of ``transformers``, token for token."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..engines import random_prompts
from ..spyre_engines import greedy, spyre_config, spyre_engine
from ..tiny_checkpoints import greedy as reference
from ..tiny_checkpoints import save

KINDS = ("llama", "granite", "qwen2", "qwen3", "mistral", "gemma2", "gemma3")
PROMPTS = random_prompts([5, 40, 17, 100], vocab=190)


@pytest.mark.parametrize("kind", KINDS)
def test_greedy_text_is_that_of_transformers(kind: str, tmp_path: Path) -> None:
    """Heads of 16 lanes in 128, MLPs of 96 columns in 128, chunked prefill, batched decode, asynchronous scheduling."""
    folder = save(spyre_config(kind), tmp_path)
    want = reference(folder, PROMPTS, 24)
    with spyre_engine(folder) as engine:
        assert engine.tokens(PROMPTS, greedy(24)) == want
        assert engine.late == 0
        assert engine.counts.most_copies == 3


def test_compiled_blocks_too(tmp_path: Path) -> None:
    folder = save(spyre_config("llama"), tmp_path)
    with spyre_engine(folder, enforce_eager=False) as engine:
        assert engine.tokens(PROMPTS, greedy(24)) == reference(folder, PROMPTS, 24)
        assert engine.late == 0


@pytest.mark.parametrize("eager", [True, False])
def test_two_cards_give_the_text_of_one(eager: bool, tmp_path: Path) -> None:
    """Tensor parallel 2 over two processes: linears, embedding, head and MLP padding sharded."""
    folder = save(spyre_config("llama"), tmp_path)
    with spyre_engine(folder, tensor_parallel_size=2, enforce_eager=eager) as engine:
        assert engine.tokens(PROMPTS, greedy(24)) == reference(folder, PROMPTS, 24)
