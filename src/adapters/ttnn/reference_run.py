"""Drives the reference model for bring-up, as an engine would: one prefill, then decodes with resident inputs.

Rows get their pages in an order that no other row has, so that a page read through the wrong table changes the text.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence

import attrs
import torch

from ...ports.generator import DecodeInputs, Generator, HostResult, KVCacheLayer, PrefillInputs
from ...ports.sampling import DeviceSampling
from ...ports.step import NO_RELOAD, ReloadCommands
from .reference_weights import VOCAB

_RELOAD_ALL = ReloadCommands(inputs=True, sampling_params=True, reset_sampling_state=True)
_RELOAD_TOKENS = ReloadCommands(inputs=True)


@attrs.frozen(kw_only=True)
class Layout:
    """Rows, lanes and KV blocks of a run. Block 0 is nobody's, as in vLLM."""

    lanes: int
    rows_per_lane: int
    max_len: int
    block_size: int = 32

    @property
    def capacity(self) -> int:
        return self.lanes * self.rows_per_lane

    @property
    def blocks_per_row(self) -> int:
        return -(-self.max_len // self.block_size)

    @property
    def num_blocks(self) -> int:
        """a lane"""
        return self.rows_per_lane * self.blocks_per_row + 1


@attrs.frozen(kw_only=True)
class Generated:
    """``tokens``: what followed each prompt. Seconds by the caller's clock: the prefill's, and between decode steps."""

    tokens: list[list[int]]
    prefill_seconds: float
    step_seconds: list[float]


def start(generator: Generator[torch.Tensor], layout: Layout, *, traced: bool) -> None:
    """Allocate and warm up in two phases: compile everything, then capture (contract 3.7)."""
    shape = (layout.num_blocks, 1, layout.block_size, VOCAB)
    generator.allocate_kv_cache([KVCacheLayer(shape=shape, dtype="bfloat16", tensor=0)])
    for capturing in (False, True) if traced else (False,):
        generator.warm_up_prefill(sample_on_device=True, traced=capturing)
        generator.warm_up_decode(
            max_batch_size=layout.capacity,
            blocks_per_row=layout.blocks_per_row,
            sample_on_device=True,
            traced=capturing,
        )


def prompts_for(layout: Layout, new_tokens: int, seed: int = 0) -> list[list[int]]:
    """One prompt a row, of lengths around tiles and blocks, each with room for ``new_tokens``."""
    draw = random.Random(seed)
    longest = layout.max_len - new_tokens
    lengths = [min(n, longest) for n in (1, 2, 31, 32, 33, 63, 64, 65, 100)]
    return [
        [draw.randrange(VOCAB) for _ in range(lengths[row % len(lengths)])] for row in range(layout.capacity)
    ]


def page_table(layout: Layout, seed: int = 0) -> torch.Tensor:
    """int32 [capacity, blocks a row]: each lane's blocks in an order of its own."""
    draw = random.Random(seed)
    lanes = [draw.sample(range(1, layout.num_blocks), layout.num_blocks - 1) for _ in range(layout.lanes)]
    return torch.tensor(lanes, dtype=torch.int32).reshape(layout.capacity, layout.blocks_per_row)


def generate(
    generator: Generator[torch.Tensor],
    layout: Layout,
    prompts: Sequence[Sequence[int]],
    new_tokens: int,
    *,
    overlapped: bool,
    on_device: bool = True,
    clock: Callable[[], float],
) -> Generated:
    """Continue ``prompts``, prompt i on row i, by ``new_tokens`` each.

    ``overlapped``: a step is submitted before the one before it is read, which needs ``on_device``. Without
    ``on_device`` logits come back and the host takes the best.
    """
    if overlapped and not on_device:
        raise ValueError("a step whose tokens the host chooses cannot be submitted before they are read")
    count, tables = len(prompts), page_table(layout)
    sampling = [DeviceSampling()] * layout.capacity if on_device else None
    begun = clock()
    result = generator.prefill(
        PrefillInputs(
            tokens=_padded(prompts),
            page_table=_live(tables[:count], [len(prompt) for prompt in prompts], layout),
            layer_page_tables=None,
            starts=[0] * count,
            ends=[len(prompt) for prompt in prompts],
            slots=list(range(count)),
            sampling=None if sampling is None else sampling[:count],
            logits_rows=None,
        )
    ).read()
    texts = [[token] for token in _picked(result)]
    marks = [clock()]
    prefill_seconds = marks[0] - begun

    pending = None
    for step in range(new_tokens - 1):
        lengths = [len(prompt) + step for prompt in prompts]
        # The device moves its tokens and positions on; only what it cannot know is sent.
        reload = _RELOAD_ALL if step == 0 else NO_RELOAD
        if not on_device:
            reload = _RELOAD_TOKENS
        elif step and any(length % layout.block_size == 0 for length in lengths):
            reload = ReloadCommands(page_table=True)
        readback = generator.decode(_decode_inputs(layout, texts, lengths, tables, sampling, reload))
        if overlapped:
            pending, readback = readback, pending
        if readback is not None:
            _append(texts, readback.read())
            marks.append(clock())
    if pending is not None:
        _append(texts, pending.read())
        marks.append(clock())
    steps = [after - before for before, after in itertools.pairwise(marks)]
    return Generated(tokens=texts, prefill_seconds=prefill_seconds, step_seconds=steps)


def _decode_inputs(
    layout: Layout,
    texts: Sequence[Sequence[int]],
    lengths: Sequence[int],
    tables: torch.Tensor,
    sampling: Sequence[DeviceSampling] | None,
    reload: ReloadCommands,
) -> DecodeInputs[torch.Tensor]:
    rows, count = layout.capacity, len(texts)
    tokens = torch.zeros((rows, 1), dtype=torch.int32)
    positions = torch.full((rows,), -1, dtype=torch.int32)
    pages = torch.zeros_like(tables)
    positions[:count] = torch.tensor(lengths, dtype=torch.int32)
    tokens[:count, 0] = torch.tensor([text[-1] for text in texts], dtype=torch.int32)
    pages[:count] = _live(tables[:count], [length + 1 for length in lengths], layout)
    return DecodeInputs(
        tokens=tokens,
        positions=positions,
        page_table=pages,
        layer_page_tables=None,
        sampling=sampling,
        logits_rows=None,
        reload=reload,
    )


def _live(tables: torch.Tensor, lengths: Sequence[int], layout: Layout) -> torch.Tensor:
    """``tables`` with zeros beyond the blocks that ``lengths`` positions need."""
    needed = torch.tensor([-(-length // layout.block_size) for length in lengths])[:, None]
    return torch.where(torch.arange(tables.shape[1])[None, :] < needed, tables, 0).to(torch.int32)


def _padded(prompts: Sequence[Sequence[int]]) -> torch.Tensor:
    tokens = torch.zeros((len(prompts), max(map(len, prompts))), dtype=torch.int32)
    for row, prompt in enumerate(prompts):
        tokens[row, : len(prompt)] = torch.tensor(prompt, dtype=torch.int32)
    return tokens


def _picked(result: HostResult[torch.Tensor]) -> list[int]:
    picked = result.tokens if result.tokens is not None else result.logits
    if picked is None:
        raise AssertionError("a step came back with neither tokens nor logits")
    return [int(token) for token in (picked if result.tokens is not None else picked.argmax(-1))]


def _append(texts: list[list[int]], result: HostResult[torch.Tensor]) -> None:
    for text, token in zip(texts, _picked(result), strict=False):
        text.append(token)
