"""From a plan's integers to tables of one entry a (sequence, block) pair or query row. numpy; no loop over either."""

from __future__ import annotations

import numpy as np

from ....domain.attention_plan import DecodePlan, SequencePlan
from .sheets import Numbers


def runs(bases: Numbers, counts: Numbers) -> Numbers:
    """``base, base + 1, ...`` for each of ``bases``, ``counts`` numbers long, one after the other."""
    ends = np.cumsum(counts)
    return np.repeat(bases - ends + counts, counts) + np.arange(ends[-1])


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
    starts = np.cumsum(counts) - counts
    total = int(starts[-1] + counts[-1])
    # The table as one row, for a gather by one number an entry; a copy only where it is not laid out so.
    pages[:total] = block_table.reshape(-1).take(runs(sequences * block_table.shape[1] + first, counts))
    pages[total:] = pages[0]
    owner[:total] = np.repeat(np.arange(len(counts)), counts)
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
    groups = -(-counts // radix)
    starts = np.cumsum(groups) - groups
    first_round[:] = entries - 1
    first_round[runs(starts * radix, counts)] = np.arange(counts.sum())
    second_round[:] = len(first_round) // radix - 1
    second_round[runs(np.arange(len(groups)) * radix, groups)] = np.arange(groups.sum())


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
