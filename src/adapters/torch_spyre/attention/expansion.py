"""From a plan's integers to tables of one entry a (sequence, block) pair or query row. numpy; no loop over either."""

from __future__ import annotations

import numpy as np

from ....domain.attention_plan import DecodePlan, SequencePlan
from .sheets import Numbers


def counted(counts: Numbers) -> tuple[Numbers, Numbers, Numbers]:
    """For runs of ``counts`` elements one after the other: (start of each run, run of each element, place in it)."""
    ends = np.cumsum(counts)
    starts = ends - counts
    owner = np.repeat(np.arange(len(counts)), counts)
    return starts, owner, np.arange(len(owner)) - starts[owner]


def fill_rows(plan: DecodePlan, rows: Numbers, dump: int) -> None:
    """``rows`` [B]: the body row of each sequence, then the dump row."""
    rows[: len(plan.rows)] = plan.rows
    rows[len(plan.rows) :] = dump


def fill_flat(
    plan: DecodePlan,
    block_table: Numbers,
    block_size: int,
    pages: Numbers,
    owner: Numbers,
    low: Numbers | None,
    high: Numbers,
) -> None:
    """The entries [E] of a flat decode; ``block_table`` [sequences, W]. See `FlatTables`."""
    sequences, first, counts = (np.array(column) for column in (plan.sequences, plan.first, plan.counts))
    starts, whose, inside = counted(counts)
    total = len(whose)
    pages[:total] = block_table[sequences[whose], first[whose] + inside]
    pages[total:] = pages[0]
    owner[:total] = whose
    owner[total:] = 0
    high[:total] = block_size
    high[starts + counts - 1] = plan.high
    high[total:] = 0
    if low is not None:
        low[:] = 0
        low[starts] = plan.low


def fill_rounds(plan: DecodePlan, radix: int, first_round: Numbers, second_round: Numbers, entries: int) -> None:
    """The two rounds of bringing a flat decode's partial results together. See `FlatTables`."""
    counts = np.array(plan.counts)
    _, whose, inside = counted(counts)
    group_starts, group_owner, group_inside = counted(-(-counts // radix))
    first_round[:] = entries - 1
    first_round[(group_starts[whose] + inside // radix) * radix + inside % radix] = np.arange(len(whose))
    second_round[:] = len(first_round) // radix - 1
    second_round[group_owner * radix + group_inside] = np.arange(len(group_owner))


def fill_rectangle(
    plan: DecodePlan,
    block_table: Numbers,
    block_size: int,
    pages: Numbers,
    owner: Numbers,
    low: Numbers | None,
    high: Numbers,
) -> None:
    """The entries [B * N] of a rectangular decode. See `RectangularTables`."""
    rows, blocks = plan.variant.sequences, len(pages) // plan.variant.sequences
    sequences, first, counts, last = (
        np.array(column) for column in (plan.sequences, plan.first, plan.counts, plan.high)
    )
    live = len(sequences)
    owner.reshape(rows, blocks)[:] = np.arange(rows)[:, None]
    within = np.minimum(np.arange(blocks), counts[:, None] - 1)
    table = pages.reshape(rows, blocks)
    table[:live] = block_table[sequences[:, None], first[:, None] + within]
    table[live:] = table[0, 0]
    ends = high.reshape(rows, blocks)
    ends[:] = 0
    ends[:live] = np.where(np.arange(blocks) < counts[:, None], block_size, 0)
    ends[np.arange(live), counts - 1] = last
    if low is not None:
        starts = low.reshape(rows, blocks)
        starts[:] = 0
        starts[:live, 0] = plan.low


def fill_sequence(
    plan: SequencePlan,
    block_table: Numbers,
    block_size: int,
    chunk_tokens: int,
    window: int | None,
    rows: Numbers,
    pages: Numbers,
    low: Numbers | None,
    high: Numbers,
) -> None:
    """One sequence: ``rows`` [A], ``pages`` [N], bounds [C, >= A]. See `SequenceTables`."""
    within = np.minimum(np.arange(high.shape[1]), plan.query - 1)
    rows[:] = plan.row + within[: len(rows)]
    pages[: plan.count] = block_table[plan.sequence, plan.first : plan.first + plan.count]
    pages[plan.count :] = pages[plan.count - 1]
    chunk_starts = (plan.first * block_size + np.arange(high.shape[0]) * chunk_tokens)[:, None]
    positions = plan.context + within - chunk_starts
    high[:] = np.clip(positions + 1, 0, chunk_tokens)
    if low is not None and window is not None:
        low[:] = np.clip(positions - window + 1, 0, chunk_tokens)
