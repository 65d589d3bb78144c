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
