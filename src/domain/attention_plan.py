"""What a step's attention runs, as O(sequences) integers: which kernel, at which bucket, over which blocks.

`attention_plan` is the ONE function that warm-up, the recorder and dispatch ask (`warmup` builds its steps so that they
go through it). The adapter expands a plan to arrays of one entry a (sequence, block) pair; no such loop is here.

Two kernels share a step. Sequences with one query row (decodes, and prefill chunks of one token, which are the same
thing) go together over ONE flat list of (sequence, block) entries whose total is rounded up. Longer queries run one
by one, query rows and block count each rounded up. With decode off, single rows run one by one too.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from typing import TypeAlias

import attrs

from .buckets import Ladder
from .capacity import cdiv


class DecodeForm(enum.Enum):
    """How single query rows run."""

    FLAT = "flat"
    """Over one list of (sequence, block) entries; its total length is the bucket."""
    RECTANGULAR = "rectangular"
    """Over sequences x blocks of the longest, as the public plugin does: an option, and a check on the flat form."""
    OFF = "off"
    """One by one."""


@attrs.frozen(order=True)
class FlatDecode:
    """A flat decode kernel: ``sequences`` rows out, ``entries`` (sequence, block) pairs in, one at least to spare."""

    sequences: int
    entries: int
    windowed: bool = False


@attrs.frozen(order=True)
class RectangularDecode:
    """A rectangular decode kernel: ``sequences`` rows of ``blocks`` each."""

    sequences: int
    blocks: int
    windowed: bool = False


@attrs.frozen(order=True)
class OneSequence:
    """A per-sequence kernel: ``query`` rows over ``blocks`` blocks."""

    query: int
    blocks: int
    windowed: bool = False


Variant: TypeAlias = "FlatDecode | RectangularDecode | OneSequence"
"""The shape key of one compiled attention kernel. Windows of any width share it: bounds are data, not shape."""


class UnplannedShapeError(Exception):
    """A step has a length that no ladder holds: the engine's limits and the ladders disagree."""


@attrs.frozen(kw_only=True)
class AttentionShapes:
    """The ladders and limits of an engine's attention."""

    block_size: int
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    query: Ladder
    """Query rows of one sequence."""
    blocks: Ladder
    """KV blocks of one sequence; its top holds ``max_model_len``."""
    sequences: Ladder
    """Rows of a decode kernel."""
    entries: Ladder
    """(sequence, block) entries of a flat decode. The top holds one sequence of the greatest length and one spare; a
    step with more runs as several decodes."""
    decode: DecodeForm = DecodeForm.FLAT

    def __attrs_post_init__(self) -> None:
        for name, top, need in (
            ("query", self.query.top, min(self.max_num_batched_tokens, self.max_model_len)),
            ("blocks", self.blocks.top, self.longest),
            ("sequences", self.sequences.top, self.max_num_seqs),
            ("entries", self.entries.top, self.longest + 1),
        ):
            if top < need:
                raise ValueError(f"the {name} ladder ends at {top} where a step can need {need}; put {need} on top")

    @property
    def longest(self) -> int:
        """Blocks of a sequence of ``max_model_len`` tokens."""
        return cdiv(self.max_model_len, self.block_size)

    @property
    def radix(self) -> int:
        """Partial results that one gather of the flat decode brings together: two rounds of it hold the longest
        sequence."""
        radix = 8
        while radix * radix < self.longest:
            radix *= 2
        return radix

    @property
    def most_decodes(self) -> int:
        """Flat decodes that a step can need: each but the last holds more than ``top - 1 - longest`` entries."""
        total = self.max_num_seqs * self.longest
        return min(self.max_num_seqs, total // (self.entries.top - self.longest) + 1)

    def groups(self, variant: FlatDecode) -> int:
        """Rows of the first round of bringing partial results together, one of them always spare. Never as many as the
        second round reads: that would gather a whole source (spyre contract 6, check 8)."""
        groups = (variant.entries + variant.sequences * (self.radix - 1)) // self.radix + 1
        return groups + (groups == variant.sequences * self.radix)

    def for_pool(self, pages: int) -> AttentionShapes:
        """The same shapes where no kernel gathers as many rows as its source has, with a pool of ``pages`` pages: such
        a gather faults on the device (spyre contract 6, check 8)."""
        rectangles: set[int] = set()
        if self.decode is DecodeForm.RECTANGULAR:
            rectangles = {1, *(pages // rows for rows in self.sequences.sizes if pages % rows == 0)}
        return attrs.evolve(
            self,
            blocks=self.blocks.avoiding({pages, *rectangles}),
            entries=self.entries.avoiding({pages, *self.sequences.sizes}),
        )


@attrs.frozen
class DecodePlan:
    """One decode kernel call. The columns have one integer for each of its sequences."""

    variant: FlatDecode | RectangularDecode
    sequences: tuple[int, ...]
    """Index in the batch."""
    rows: tuple[int, ...]
    """Query row in the packed body."""
    first: tuple[int, ...]
    """First block attended to, counted within the sequence."""
    counts: tuple[int, ...]
    """Blocks attended to, 1 or more."""
    low: tuple[int, ...]
    """First slot attended to within the first block; 0 without a window."""
    high: tuple[int, ...]
    """Slots attended to end here within the last block, exclusive; 1 to the block size."""


@attrs.frozen
class SequencePlan:
    """One per-sequence kernel call."""

    variant: OneSequence
    sequence: int
    row: int
    """First query row in the packed body."""
    query: int
    """Real query rows; the kernel's other rows repeat the last of them."""
    context: int
    """KV tokens before the first query row."""
    first: int
    count: int


@attrs.frozen
class AttentionPlan:
    """One step's attention in one kind of layer (one window)."""

    window: int | None
    decodes: tuple[DecodePlan, ...]
    singles: tuple[SequencePlan, ...]

    @property
    def variants(self) -> frozenset[Variant]:
        """Every kernel shape that the step runs."""
        return frozenset((*(d.variant for d in self.decodes), *(s.variant for s in self.singles)))


def active_blocks(query: int, context: int, window: int | None, block_size: int) -> tuple[int, int]:
    """(first, count) of the blocks that any of the query rows attends to. The EARLIEST row's window decides where they
    begin: taken from the last row, a prefill loses blocks it needs (spyre contract 8.33)."""
    first = 0 if window is None else max(0, context - window + 1) // block_size
    return first, cdiv(context + query, block_size) - first


def attention_plan(
    shapes: AttentionShapes, query_lens: Sequence[int], context_lens: Sequence[int], window: int | None = None
) -> AttentionPlan:
    """The plan of a batch whose sequence i has ``query_lens[i]`` rows after ``context_lens[i]`` tokens of KV.

    Rows are packed in the order of the batch; a sequence without rows is passed over. Raises `UnplannedShapeError` if a
    length is above its ladder.
    """
    singles: list[SequencePlan] = []
    waiting: list[tuple[int, int, int, int, int, int]] = []
    batched = shapes.decode is not DecodeForm.OFF
    block_size = shapes.block_size
    row = 0
    for sequence, (query, context) in enumerate(zip(query_lens, context_lens, strict=True)):
        if query == 0:
            continue
        if context + query > shapes.max_model_len:
            raise UnplannedShapeError(
                f"sequence {sequence} of the step has {context + query} tokens where max_model_len is "
                f"{shapes.max_model_len}; schedule no more than that"
            )
        first, count = active_blocks(query, context, window, block_size)
        if batched and query == 1:
            low = 0 if window is None else max(0, context + 1 - window) - first * block_size
            high = context + 1 - (first + count - 1) * block_size
            waiting.append((sequence, row, first, count, low, high))
        else:
            fitted = _fit("query", shapes.query, query), _fit("blocks", shapes.blocks, count)
            variant = OneSequence(*fitted, bool(window))
            singles.append(SequencePlan(variant, sequence, row, query, context, first, count))
        row += query
    return AttentionPlan(window, tuple(_decodes(shapes, waiting, bool(window))), tuple(singles))


def _decodes(
    shapes: AttentionShapes, waiting: list[tuple[int, int, int, int, int, int]], windowed: bool
) -> list[DecodePlan]:
    out: list[DecodePlan] = []
    room = shapes.entries.top - 1
    while waiting:
        total, taken = 0, 0
        for span in waiting:
            if shapes.decode is DecodeForm.FLAT and total + span[3] > room:
                break
            total += span[3]
            taken += 1
        columns = tuple(zip(*waiting[:taken], strict=True))
        rows = _fit("sequences", shapes.sequences, taken)
        variant: FlatDecode | RectangularDecode
        if shapes.decode is DecodeForm.FLAT:
            variant = FlatDecode(rows, _fit("entries", shapes.entries, total + 1), windowed)
        else:
            variant = RectangularDecode(rows, _fit("blocks", shapes.blocks, max(columns[3])), windowed)
        out.append(DecodePlan(variant, *columns))
        waiting = waiting[taken:]
    return out


def _fit(name: str, ladder: Ladder, amount: int) -> int:
    size = ladder.fit(amount)
    if size is None:
        raise UnplannedShapeError(f"{amount} is above the top of the {name} ladder, {ladder.top}; put it on the ladder")
    return size
