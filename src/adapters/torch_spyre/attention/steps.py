"""One step's tables: plan, expand, upload in at most three copies, cut out on the device. Every layer shares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import attrs
import numpy as np
import torch

from ....domain.attention_plan import (
    AttentionPlan,
    AttentionShapes,
    DecodeForm,
    DecodePlan,
    FlatDecode,
    SequencePlan,
    attention_plan,
)
from ....domain.buckets import Ladder
from .expansion import fill_flat, fill_rectangle, fill_rounds, fill_rows, fill_sequence
from .kernels import CHUNK_TOKENS
from .sheets import Numbers, Region, Sheet
from .tables import FlatTables, KernelTables, RectangularTables, SequenceTables, StepTables

QUERY_ALIGN = 64
"""Bounds of a chunk start at a multiple of this many elements, as the device wants of any float view."""


@attrs.frozen
class _DecodeRegions:
    rows: Region
    pages: Region
    owner: Region
    first_round: Region
    second_round: Region
    low: Region
    high: Region


@attrs.frozen
class _SequenceRegions:
    rows: Region
    pages: Region
    low: Region
    high: Region


def staging_rows(max_num_batched_tokens: int, max_num_seqs: int) -> int:
    """R: a row for every body row and one to dump padding in, which also keeps a gather from taking the whole."""
    return max(max_num_batched_tokens, max_num_seqs) + 1


class AttentionSteps:
    """Owner of an engine's sheets.

    ``windows`` are those of its kinds of layers (None for full attention); all read one block table, so one upload does
    for all. ``body`` is the body ladder; a body of another length works, at the price of one more copy the first time.
    ``extra`` names further int64 tables [n] that a step may send along, each with the lengths it may have.
    """

    def __init__(
        self,
        shapes: AttentionShapes,
        *,
        windows: Sequence[int | None] = (None,),
        body: Ladder,
        device: torch.device,
        dtype: torch.dtype = torch.float16,
        extra: Mapping[str, Ladder] | None = None,
    ) -> None:
        if shapes.block_size > 2 * CHUNK_TOKENS:
            raise ValueError(
                f"block_size={shapes.block_size} is above {2 * CHUNK_TOKENS}, the largest slot number that fp16 counts "
                "exactly; use a smaller block"
            )
        self.shapes = shapes
        self.windows = tuple(dict.fromkeys(windows))
        self.rows = staging_rows(max(shapes.max_num_batched_tokens, body.top), shapes.max_num_seqs)
        self._integers = Sheet(torch.int32)
        self._longs = Sheet(torch.int64)
        self._bounds = Sheet(dtype)
        self._chunk_blocks = max(1, CHUNK_TOKENS // shapes.block_size)
        self._body_rows = self._longs.reserve(body.sizes)
        self._slots = self._longs.reserve(body.sizes)
        self._live = self._bounds.reserve(body.sizes)
        self._extra = {name: self._longs.reserve(ladder.sizes) for name, ladder in (extra or {}).items()}
        decodes = 0 if shapes.decode is DecodeForm.OFF else shapes.most_decodes
        self._decodes = {(w, i): self._reserve_decode() for i in range(decodes) for w in self.windows}
        self._singles = {(w, i): self._reserve_sequence() for i in range(shapes.max_num_seqs) for w in self.windows}
        for sheet in (self._integers, self._longs, self._bounds):
            sheet.seal(device)
        most = max(CHUNK_TOKENS, shapes.block_size)
        self.slot_numbers = torch.from_numpy(np.arange(most, dtype=np.float32)).to(dtype).to(device)
        """[CHUNK_TOKENS] 0, 1, 2, ... on the device, for every kernel."""

    def plans(self, query_lens: Sequence[int], context_lens: Sequence[int]) -> dict[int | None, AttentionPlan]:
        """The plan for each window."""
        return {w: attention_plan(self.shapes, query_lens, context_lens, w) for w in self.windows}

    def build(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_table: Numbers,
        slots: Numbers,
        body_rows: int,
        extra: Mapping[str, Numbers] | None = None,
    ) -> StepTables:
        """The tables of a step.

        ``query_lens`` and ``context_lens`` are plain ints, one a sequence, rows packed in their order; ``block_table``
        [>= sequences, W] and ``slots`` [real rows or more; negative for padding] are host arrays; ``body_rows`` is T.
        """
        plans = self.plans(query_lens, context_lens)
        real = sum(query_lens)
        rows = self._longs.write(self._body_rows, body_rows)
        rows[:real] = np.arange(real)
        rows[real:] = self.rows - 1
        written = self._longs.write(self._slots, body_rows)
        written[:real] = np.maximum(slots[:real], 0)
        written[real:] = 0
        live = self._bounds.write(self._live, body_rows)
        live[:real] = 1
        live[real:] = 0
        for name, numbers in (extra or {}).items():
            self._longs.write(self._extra[name], len(numbers))[:] = numbers
        for window, plan in plans.items():
            for place, decode in enumerate(plan.decodes):
                self._write_decode(self._decodes[window, place], decode, block_table)
            for place, single in enumerate(plan.singles):
                self._write_sequence(self._singles[window, place], single, window, block_table)
        copies = self._integers.upload() + self._longs.upload() + self._bounds.upload()
        return StepTables(
            kernels={window: self._kernels(window, plan) for window, plan in plans.items()},
            body_rows=self._longs.cut(self._body_rows, body_rows),
            live=self._bounds.cut(self._live, body_rows).view(-1, 1, 1),
            slots=self._longs.cut(self._slots, body_rows),
            extra={name: self._longs.cut(self._extra[name], len(numbers)) for name, numbers in (extra or {}).items()},
            copies=copies,
        )

    def _kernels(self, window: int | None, plan: AttentionPlan) -> tuple[KernelTables, ...]:
        decodes = (self._cut_decode(self._decodes[window, i], decode) for i, decode in enumerate(plan.decodes))
        singles = (self._cut_sequence(self._singles[window, i], single) for i, single in enumerate(plan.singles))
        return (*decodes, *singles)

    def _reserve_decode(self) -> _DecodeRegions:
        shapes, sequences = self.shapes, self.shapes.sequences.sizes
        first: set[int] = set()
        second: set[int] = set()
        if shapes.decode is DecodeForm.FLAT:
            entries = set(shapes.entries.sizes)
            first = {shapes.groups(FlatDecode(b, e)) * shapes.radix for b in sequences for e in entries}
            second = {b * shapes.radix for b in sequences}
        else:
            entries = {b * n for b in sequences for n in shapes.blocks.sizes}
        bounds = [self._bounds.reserve(entries) for _ in range(2 if any(self.windows) else 1)]
        return _DecodeRegions(
            rows=self._longs.reserve(sequences),
            pages=self._integers.reserve(entries),
            owner=self._integers.reserve(entries),
            first_round=self._integers.reserve(first),
            second_round=self._integers.reserve(second),
            high=bounds[0],
            low=bounds[-1],
        )

    def _reserve_sequence(self) -> _SequenceRegions:
        shapes = self.shapes
        bounds = {self._chunks(n) * _aligned(a) for n in shapes.blocks.sizes for a in shapes.query.sizes}
        reserved = [self._bounds.reserve(bounds) for _ in range(2 if any(self.windows) else 1)]
        return _SequenceRegions(
            rows=self._longs.reserve(shapes.query.sizes),
            pages=self._integers.reserve(shapes.blocks.sizes),
            high=reserved[0],
            low=reserved[-1],
        )

    def _chunks(self, blocks: int) -> int:
        return -(-blocks // self._chunk_blocks)

    def _write_decode(self, regions: _DecodeRegions, plan: DecodePlan, block_table: Numbers) -> None:
        variant, block_size = plan.variant, self.shapes.block_size
        fill_rows(plan, self._longs.write(regions.rows, variant.sequences), self.rows - 1)
        entries = variant.entries if isinstance(variant, FlatDecode) else variant.sequences * variant.blocks
        pages = self._integers.write(regions.pages, entries)
        owner = self._integers.write(regions.owner, entries)
        high = self._bounds.write(regions.high, entries)
        low = self._bounds.write(regions.low, entries) if variant.windowed else None
        if isinstance(variant, FlatDecode):
            fill_flat(plan, block_table, block_size, pages, owner, low, high)
            radix = self.shapes.radix
            first = self._integers.write(regions.first_round, self.shapes.groups(variant) * radix)
            second = self._integers.write(regions.second_round, variant.sequences * radix)
            fill_rounds(plan, radix, first, second, entries)
        else:
            fill_rectangle(plan, block_table, block_size, pages, owner, low, high)

    def _cut_decode(self, regions: _DecodeRegions, plan: DecodePlan) -> KernelTables:
        variant, shapes = plan.variant, self.shapes
        rows = self._longs.cut(regions.rows, variant.sequences)
        entries = variant.entries if isinstance(variant, FlatDecode) else variant.sequences * variant.blocks
        pages = self._integers.cut(regions.pages, entries)
        owner = self._integers.cut(regions.owner, entries)
        low = self._bounds.cut(regions.low, entries) if variant.windowed else None
        high = self._bounds.cut(regions.high, entries)
        if not isinstance(variant, FlatDecode):
            return RectangularTables(variant, rows, pages, owner, low, high)
        first = self._integers.cut(regions.first_round, shapes.groups(variant) * shapes.radix)
        second = self._integers.cut(regions.second_round, variant.sequences * shapes.radix)
        return FlatTables(variant, rows, pages, owner, low, high, first, second)

    def _write_sequence(
        self, regions: _SequenceRegions, plan: SequencePlan, window: int | None, block_table: Numbers
    ) -> None:
        variant = plan.variant
        chunks, width = self._chunks(variant.blocks), _aligned(variant.query)
        fill_sequence(
            plan,
            block_table,
            self.shapes.block_size,
            self._chunk_blocks * self.shapes.block_size,
            window,
            self._longs.write(regions.rows, variant.query),
            self._integers.write(regions.pages, variant.blocks),
            self._bounds.write(regions.low, chunks * width).reshape(chunks, width) if variant.windowed else None,
            self._bounds.write(regions.high, chunks * width).reshape(chunks, width),
        )

    def _cut_sequence(self, regions: _SequenceRegions, plan: SequencePlan) -> SequenceTables:
        variant = plan.variant
        chunks, width = self._chunks(variant.blocks), _aligned(variant.query)
        low = self._bounds.cut(regions.low, chunks * width).view(chunks, width) if variant.windowed else None
        return SequenceTables(
            variant,
            rows=self._longs.cut(regions.rows, variant.query),
            pages=self._integers.cut(regions.pages, variant.blocks),
            low=low,
            high=self._bounds.cut(regions.high, chunks * width).view(chunks, width),
        )


def _aligned(query: int) -> int:
    return -(-query // QUERY_ALIGN) * QUERY_ALIGN
