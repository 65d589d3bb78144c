"""Tensor parallel 2 over two processes, which this one must not have opened a card before."""

from __future__ import annotations

from pathlib import Path

from ..engines import random_prompts
from ..spyre_engines import greedy, spyre_config, spyre_engine
from ..tiny_checkpoints import greedy as reference
from ..tiny_checkpoints import save


def test_two_cards_give_the_text_of_one(tmp_path: Path) -> None:
    """Linears, embedding, head and MLP padding sharded; the sums over ranks inside compiled blocks."""
    folder = save(spyre_config("llama"), tmp_path)
    prompts = random_prompts([5, 40, 17, 100], vocab=190)
    with spyre_engine(folder, tensor_parallel_size=2, enforce_eager=False) as engine:
        assert engine.tokens(prompts, greedy(24)) == reference(folder, prompts, 24)
