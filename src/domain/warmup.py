"""Which kernels an engine can ever run, each with a step that runs it.

Warm-up runs these steps through the same `attention_plan` as serving does, so that what is compiled is what dispatch
asks for. A variant is listed only if some schedulable step lands on it, and every schedulable step lands on listed
ones; a test walks all steps of several configurations and holds both.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TypeAlias

import attrs

from .attention_plan import (
    AttentionShapes,
    DecodeForm,
    FlatDecode,
    OneSequence,
    RectangularDecode,
    Variant,
    active_blocks,
    attention_plan,
)
from .buckets import Ladder


@attrs.frozen(order=True)
class BodyRows:
    """The body at ``rows`` rows: the model's blocks, and the kernels that store K and V, stage and take back."""

    rows: int


Warmed: TypeAlias = "BodyRows | FlatDecode | RectangularDecode | OneSequence"


@attrs.frozen
class WarmupStep:
    """A step that runs ``warms`` (and perhaps others) in layers of ``window``; the block table may hold any page."""

    warms: Warmed
    window: int | None
    body_rows: int
    query_lens: tuple[int, ...]
    context_lens: tuple[int, ...]


@attrs.frozen
class WarmupPlan:
    """Steps in the order to run them: the largest of each kind first, so that what does not fit fails at once."""

    steps: tuple[WarmupStep, ...]
    skipped: tuple[BodyRows, ...] = ()
    """Declared body sizes that no step can reach; to be reported, for they were asked for (field case 38)."""

    @property
    def variants(self) -> frozenset[Warmed]:
        return frozenset(step.warms for step in self.steps)


def step_variants(
    shapes: AttentionShapes,
    windows: Iterable[int | None],
    body: Ladder,
    query_lens: Sequence[int],
    context_lens: Sequence[int],
) -> frozenset[Warmed]:
    """Everything that one step runs, as dispatch has it."""
    rows = body.fit(sum(query_lens))
    out: set[Warmed] = set() if rows is None else {BodyRows(rows)}
    for window in windows:
        out |= attention_plan(shapes, query_lens, context_lens, window).variants
    return frozenset(out)


def warmup_plan(shapes: AttentionShapes, windows: Iterable[int | None], body: Ladder) -> WarmupPlan:
    """One step for every variant that an engine with these ladders, and layers of these windows, can run.

    Windows of different widths share kernels (bounds are data), so a variant is warmed for one of them.
    """
    seen: set[Warmed] = set()
    steps: list[WarmupStep] = []
    skipped: list[BodyRows] = []
    for rows in sorted(body.sizes, reverse=True):
        if body.least(rows) > shapes.max_num_batched_tokens:
            skipped.append(BodyRows(rows))
        else:
            seen.add(BodyRows(rows))
            steps.append(WarmupStep(BodyRows(rows), None, rows, (1,), (0,)))
    for window in dict.fromkeys(windows):
        found = sorted(_witnesses(shapes, window), key=lambda pair: (type(pair[0]).__name__, pair[0]), reverse=True)
        for variant, lens in found:
            if variant in seen:
                continue
            seen.add(variant)
            query, context = zip(*lens, strict=True)
            rows = body.fit(sum(query)) or sum(query)
            steps.append(WarmupStep(variant, window, rows, query, context))
    return WarmupPlan(tuple(steps), tuple(skipped))


Lengths: TypeAlias = "list[tuple[int, int]]"
"""(query rows, context tokens) of each sequence."""


def _witnesses(shapes: AttentionShapes, window: int | None) -> Iterator[tuple[Variant, Lengths]]:
    yield from _single_witnesses(shapes, window)
    if shapes.decode is DecodeForm.FLAT:
        yield from _flat_witnesses(shapes, window)
    elif shapes.decode is DecodeForm.RECTANGULAR:
        yield from _rectangular_witnesses(shapes, window)


def _single_witnesses(shapes: AttentionShapes, window: int | None) -> Iterator[tuple[Variant, Lengths]]:
    fewest = 1 if shapes.decode is DecodeForm.OFF else 2
    most = min(shapes.max_num_batched_tokens, shapes.max_model_len)
    for size in shapes.query.sizes:
        low, high = max(fewest, shapes.query.least(size)), min(size, most)
        for blocks in shapes.blocks.sizes if low <= high else ():
            span = range(shapes.blocks.least(blocks), blocks + 1)
            found = _with_blocks(shapes, window, (low, min(high, max(low, blocks * shapes.block_size)), high), span)
            if found is not None:
                yield OneSequence(size, blocks, bool(window)), [found]


def _flat_witnesses(shapes: AttentionShapes, window: int | None) -> Iterator[tuple[Variant, Lengths]]:
    longest = _longest_decode(shapes, window)
    for rows in shapes.sequences.sizes:
        fewest = shapes.sequences.least(rows)
        for entries in shapes.entries.sizes:
            most = min(rows, shapes.max_num_seqs, shapes.max_num_batched_tokens, entries - 1)
            if most < fewest:
                continue
            total = min(entries - 1, most * longest)
            if total + 1 >= shapes.entries.least(entries):
                counts = [total // most + (i < total % most) for i in range(most)]
                yield FlatDecode(rows, entries, bool(window)), [_decode_of(shapes, window, n) for n in counts]


def _rectangular_witnesses(shapes: AttentionShapes, window: int | None) -> Iterator[tuple[Variant, Lengths]]:
    longest = _longest_decode(shapes, window)
    for rows in shapes.sequences.sizes:
        most = min(rows, shapes.max_num_seqs, shapes.max_num_batched_tokens)
        for blocks in shapes.blocks.sizes:
            count = min(blocks, longest)
            if most >= shapes.sequences.least(rows) and count >= shapes.blocks.least(blocks):
                variant = RectangularDecode(rows, blocks, bool(window))
                yield variant, [_decode_of(shapes, window, count)] * most


def _longest_decode(shapes: AttentionShapes, window: int | None) -> int:
    """Blocks that a single query row attends to at most."""
    contexts = _contexts(shapes, window, 1)
    return max(active_blocks(1, context, window, shapes.block_size)[1] for context in contexts)


def _decode_of(shapes: AttentionShapes, window: int | None, count: int) -> tuple[int, int]:
    found = _with_blocks(shapes, window, (1,), range(count, count + 1))
    assert found is not None, "every count up to the longest occurs, for a context grows by one token at a time"
    return found


def _with_blocks(
    shapes: AttentionShapes, window: int | None, queries: Iterable[int], counts: range
) -> tuple[int, int] | None:
    """(query rows, context tokens), rows among ``queries``, that attend to a number of blocks in ``counts``; the most
    of them that there is."""
    best: tuple[int, tuple[int, int]] | None = None
    for query in dict.fromkeys(queries):
        for context in _contexts(shapes, window, query):
            count = active_blocks(query, context, window, shapes.block_size)[1]
            if count in counts and (best is None or count > best[0]):
                best = count, (query, context)
    return None if best is None else best[1]


def _contexts(shapes: AttentionShapes, window: int | None, query: int) -> Iterator[int]:
    """Contexts at which the number of blocks attended to changes, and their neighbours, for ``query`` rows.

    Blocks are gained where the last row enters one and lost where the first row's window leaves one; past one window
    and two blocks the counts repeat.
    """
    size = shapes.block_size
    last = shapes.max_model_len - query
    if last < 0:
        return
    reach = last if window is None else min(last, window + query + 2 * size)
    yield from (0, last)
    for edge in range(0, reach + query + size, size):
        for context in (edge - query, edge - query + 1):
            if 0 <= context <= last:
                yield context
        if window is not None:
            for context in (edge + window - 2, edge + window - 1):
                if 0 <= context <= last:
                    yield context
