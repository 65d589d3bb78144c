"""Greedy text equals ``transformers``' own, token for token, whatever the engine's shape.

The cells are the first six columns of a Plackett-Burman design of 12 runs: every pair of values of every two axes
occurs in three cells, the four corners of lanes x async among them.
"""

from __future__ import annotations

from pathlib import Path

import attrs
import pytest

from ..checkpoints import TINY_VOCAB, tiny_llama
from ..engines import engine, greedy_reference, random_prompts

LENGTHS = (1, 2, 5, 16, 31, 32, 33, 63, 64, 65, 96, 97, 128, 150, 192, 200, 255, 256, 257, 300, 384, 450, 512, 700)
NEW_TOKENS = 40
MAX_LEN = 768
BLOCK = 16
POOL = {1: 100, 4: 49}
"""KV blocks of each lane, by lanes: any one request fits (48 blocks and the null block), a lane's share does not."""


@attrs.frozen
class Cell:
    lanes: int
    asynchronous: bool
    on_device: bool
    chunked: bool
    small_pool: bool
    prefix_caching: bool

    def __str__(self) -> str:
        return "-".join(
            (
                f"{self.lanes}lane",
                "async" if self.asynchronous else "sync",
                "device" if self.on_device else "host",
                "chunks" if self.chunked else "whole",
                "tight" if self.small_pool else "roomy",
                "cached" if self.prefix_caching else "uncached",
            )
        )


_GENERATOR = "++-+++---+-"
_RUNS = [[_GENERATOR[(j - i) % 11] == "+" for j in range(6)] for i in range(11)] + [[False] * 6]
CELLS = [Cell(4 if run[0] else 1, *run[1:]) for run in _RUNS]


def test_the_cells_are_pairwise() -> None:
    columns = list(zip(*(attrs.astuple(cell) for cell in CELLS), strict=True))
    for i, first in enumerate(columns):
        for second in columns[:i]:
            assert len(set(zip(first, second, strict=True))) == 4
    assert len(CELLS) >= 12


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.mark.parametrize("cell", CELLS, ids=str)
def test_greedy_text_is_transformers_own(checkpoint: Path, cell: Cell) -> None:
    from vllm import SamplingParams

    prompts = random_prompts(LENGTHS, vocab=TINY_VOCAB, shared=80 if cell.prefix_caching else 0)
    params = SamplingParams(temperature=0.0, max_tokens=NEW_TOKENS, ignore_eos=True)
    with engine(
        checkpoint,
        lanes=cell.lanes,
        rows=8,
        asynchronous=cell.asynchronous,
        on_device=cell.on_device,
        budget=96 if cell.chunked else None,
        blocks=POOL[cell.lanes] if cell.small_pool else None,
        prefix_caching=cell.prefix_caching,
        max_len=MAX_LEN,
        block_size=BLOCK,
    ) as under_test:
        texts = under_test.tokens(prompts, params)
        counts = under_test.counts
        scheduler = under_test.scheduler
    for prompt, text in zip(prompts, texts, strict=True):
        assert text == greedy_reference(checkpoint, prompt, NEW_TOKENS), f"prompt of {len(prompt)} tokens"
    # Each axis did what its name says.
    assert len(scheduler.lanes) == cell.lanes
    assert all(n > 0 for n in counts.tokens_by_lane)
    assert (counts.rows["host"] == 0) is cell.on_device
    assert (counts.rows["device"] > 0) is cell.on_device
    kept = sum(n for why, n in counts.overlap.items() if why.startswith("kept"))
    assert (kept > 0) is (cell.asynchronous and cell.on_device)
    if cell.small_pool:
        assert counts.resumed > 0, "the pool was meant to preempt"
    computed = counts.prefill_tokens
    if cell.prefix_caching and not cell.small_pool:
        assert computed < sum(map(len, prompts)), "the shared prefix was computed again"
    if not cell.prefix_caching and not cell.small_pool:
        assert computed == sum(map(len, prompts))
