"""What the host may ask next: the device's slots and resident inputs, as far as the host can know them.

Every check that needs no device data is made here, when a step is submitted, so that the error rises in the
caller's own stack. Inputs are copied here too: the host may reuse its buffers at once.
"""
from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt

from .rules import Rule, RuleBroken
from .sampler import RowSampling

Ints = npt.NDArray[np.int64]
Table = npt.NDArray[np.int32]
NEVER = -1


@attrs.frozen(kw_only=True)
class Geometry:
    capacity: int
    lanes: int
    num_blocks: int
    block_size: int
    max_seq_len: int
    windows: tuple[int | None, ...]
    """sliding window of each layer; None: the whole context"""

    @property
    def rows_per_lane(self) -> int:
        return self.capacity // self.lanes

    def lane_of(self, slot: int) -> int:
        return slot // self.rows_per_lane


@attrs.frozen(kw_only=True, eq=False)
class HostTables:
    """Copies of a step's page tables: the distinct ones, and which layer uses which."""

    tables: tuple[Table, ...]
    of_layer: tuple[int, ...]
    windows: tuple[int | None, ...]
    """the longest window of each table's layers; None as soon as one of them sees the whole context"""

    def at(self, rows: Sequence[int]) -> HostTables:
        """The tables' ``rows``, copied."""
        return attrs.evolve(self, tables=tuple(table[list(rows)] for table in self.tables))


@attrs.frozen(kw_only=True, eq=False)
class PrefillCommand:
    tokens: Ints
    """int64 [N, S]"""
    tables: HostTables
    starts: tuple[int, ...]
    ends: tuple[int, ...]
    slots: tuple[int, ...]
    sampling: RowSampling | None
    logits_rows: tuple[int, ...] | None


@attrs.frozen(kw_only=True, eq=False)
class DecodeCommand:
    batch: int
    rows: Ints
    """active rows, ascending"""
    positions: Ints
    """of the active rows"""
    tokens: Ints | None
    """of the active rows; None: the device's own"""
    tables: HostTables
    sampling: RowSampling | None
    logits_rows: tuple[int, ...] | None


@attrs.define(kw_only=True, eq=False)
class _Residents:
    """What the device keeps between decodes, as the last reload set it and the device moved it on."""

    active: npt.NDArray[np.bool_]
    positions: Ints
    tables: HostTables
    sampling: RowSampling | None = None


class SlotBook:
    """One a model. Not thread-safe: one thread submits."""

    def __init__(self, geometry: Geometry) -> None:
        self.geometry = geometry
        self._next: Ints = np.full(geometry.capacity, NEVER, np.int64)
        """the position each slot computes next; -1: never prefilled"""
        self._decoded = np.zeros(geometry.capacity, bool)
        self._poisoned = np.zeros(geometry.capacity, bool)
        """the slot's resident token is not the request's: prefilled, or sampled on the host, since the reload"""
        self._residents: _Residents | None = None

    def prefill(
        self,
        *,
        tokens: Ints,
        tables: HostTables,
        starts: Sequence[int],
        ends: Sequence[int],
        slots: Sequence[int],
        sampling: RowSampling | None,
        logits_rows: tuple[int, ...] | None,
    ) -> PrefillCommand:
        """Check a prefill and take note of it. Raises :class:`RuleBroken` and then changes nothing."""
        geometry = self.geometry
        rows = len(tokens)
        if not rows == len(starts) == len(ends) == len(slots) or rows == 0:
            raise RuleBroken(
                Rule.INPUT_SHAPE,
                f"{rows} token rows, {len(starts)} starts, {len(ends)} ends, {len(slots)} slots",
            )
        if len(set(slots)) != rows or min(slots) < 0 or max(slots) >= geometry.capacity:
            raise RuleBroken(Rule.WRONG_SLOT, f"slots {list(slots)} of {geometry.capacity}")
        written: dict[tuple[int, int, int], int] = {}
        for row, (start, end, slot) in enumerate(zip(starts, ends, slots, strict=True)):
            who = f"row {row}, slot {slot}"
            if start < 0 or start >= end:
                raise RuleBroken(Rule.MIXED_BATCH, f"{who} computes positions {start} to {end}")
            if end > tokens.shape[1] or end > geometry.max_seq_len:
                raise RuleBroken(
                    Rule.INPUT_SHAPE,
                    f"{who} ends at {end}, tokens have {tokens.shape[1]} columns, the model {geometry.max_seq_len}",
                )
            # A prefix-cache hit is a whole number of blocks, so this can only be a decode in disguise.
            if (
                end == start + 1
                and self._decoded[slot]
                and start == self._next[slot]
                and start % geometry.block_size
            ):
                raise RuleBroken(Rule.MIXED_BATCH, f"{who} decodes, and its position {start} came as a prefill")
            for number, (table, window) in enumerate(zip(tables.tables, tables.windows, strict=True)):
                self._check_row(table[row], start, end, window, who)
                for block in table[row, start // geometry.block_size : -(-end // geometry.block_size)].tolist():
                    other = written.setdefault((number, geometry.lane_of(slot), block), row)
                    if other != row:
                        raise RuleBroken(Rule.STALE_BLOCK, f"rows {other} and {row} both write block {block}")
        for end, slot in zip(ends, slots, strict=True):
            self._next[slot] = end
            self._decoded[slot] = False
            self._poisoned[slot] = True
        return PrefillCommand(
            tokens=tokens,
            tables=tables,
            starts=tuple(starts),
            ends=tuple(ends),
            slots=tuple(slots),
            sampling=sampling,
            logits_rows=logits_rows,
        )

    def reload(self, tokens: Ints, positions: Ints, tables: HostTables) -> None:
        """Take tokens, positions (int64 [B]) and tables from the host."""
        active = positions >= 0
        odd = ~active & ((positions != -1) | (tokens != 0))
        for table in tables.tables:
            odd |= ~active & table.any(axis=1)
        if odd.any():
            row = int(np.argmax(odd))
            raise RuleBroken(
                Rule.NOT_NEUTRAL, f"row {row} has token {int(tokens[row])}, position {int(positions[row])}"
            )
        for row in np.flatnonzero(active).tolist():
            expected = int(self._next[row])
            if expected == NEVER:
                raise RuleBroken(Rule.WRONG_SLOT, f"slot {row} decodes and was never prefilled")
            if expected != int(positions[row]):
                raise RuleBroken(
                    Rule.WRONG_SLOT, f"slot {row} is at position {expected}, the host says {int(positions[row])}"
                )
        self._check_tables(active, positions, tables)
        sampling = self._residents.sampling if self._residents is not None else None
        self._residents = _Residents(active=active, positions=positions, tables=tables, sampling=sampling)
        self._poisoned[: len(active)][active] = False

    def reload_tables(self, tables: HostTables) -> None:
        """Take the page tables alone."""
        residents = self._require_residents()
        if len(tables.tables[0]) != len(residents.active):
            raise RuleBroken(Rule.LATE_RELOAD, "the batch shape changed and only page tables were reloaded")
        self._check_tables(residents.active, residents.positions, tables)
        residents.tables = tables

    def keep(self, active: npt.NDArray[np.bool_], tables: HostTables) -> None:
        """Nothing is reloaded: what the host shows must be what the device has. Raises :class:`RuleBroken`."""
        residents = self._require_residents()
        if not np.array_equal(active, residents.active):
            raise RuleBroken(Rule.LATE_RELOAD, "rows joined or left without reload_inputs")
        self.require_tables(tables)

    def require_layout(self, active: npt.NDArray[np.bool_]) -> None:
        """The active rows must be the resident ones."""
        if not np.array_equal(active, self._require_residents().active):
            raise RuleBroken(Rule.LATE_RELOAD, "rows joined or left without reload_inputs")

    def require_tables(self, tables: HostTables) -> None:
        """The live blocks the host shows must be the resident ones."""
        residents = self._require_residents()
        block = self.geometry.block_size
        for table, resident in zip(tables.tables, residents.tables.tables, strict=True):
            if np.array_equal(table, resident):
                continue
            for row in np.flatnonzero(residents.active).tolist():
                live = int(residents.positions[row]) // block + 1
                if not np.array_equal(table[row, :live], resident[row, :live]):
                    raise RuleBroken(Rule.LATE_RELOAD, f"the page table of row {row} changed without a reload")

    @property
    def sampling(self) -> RowSampling | None:
        """The resident sampling parameters."""
        return None if self._residents is None else self._residents.sampling

    def reload_sampling(self, sampling: RowSampling) -> None:
        self._require_residents().sampling = sampling

    @property
    def active(self) -> npt.NDArray[np.bool_]:
        """bool [B]: the resident layout."""
        return self._require_residents().active

    def decode(
        self, *, tokens: Ints | None, sampling: RowSampling | None, logits_rows: tuple[int, ...] | None
    ) -> DecodeCommand:
        """One step from what is resident; ``tokens`` int64 [B] where they were just reloaded."""
        residents = self._require_residents()
        rows = np.flatnonzero(residents.active).astype(np.int64)
        if not len(rows):
            raise RuleBroken(Rule.INPUT_SHAPE, "a decode without an active row")
        if self._poisoned[rows].any():
            row = int(rows[np.argmax(self._poisoned[rows])])
            raise RuleBroken(
                Rule.LATE_RELOAD, f"slot {row} was prefilled, or sampled on the host, since its inputs were loaded"
            )
        positions = residents.positions[rows]
        if tokens is None:
            # On a reload the tables have just been checked at these positions.
            self._check_tables(residents.active, residents.positions, residents.tables)
        self._check_writes(rows, positions, residents.tables)
        wanted = range(len(residents.active)) if logits_rows is None and sampling is None else logits_rows or ()
        unknown = [row for row in wanted if not 0 <= row < len(residents.active)]
        if unknown or (logits_rows is not None and not all(residents.active[row] for row in logits_rows)):
            raise RuleBroken(Rule.INPUT_SHAPE, f"logits of rows {list(wanted)}, active are {rows.tolist()}")
        command = DecodeCommand(
            batch=len(residents.active),
            rows=rows,
            positions=positions,
            tokens=None if tokens is None else tokens[rows],
            tables=residents.tables,
            sampling=sampling,
            logits_rows=logits_rows,
        )
        # Whoever's logits go to the host is sampled there: the device does not know the token.
        self._poisoned[rows] = sampling is None
        if sampling is not None and logits_rows:
            self._poisoned[list(logits_rows)] = True
        self._decoded[rows] = True
        self._next[rows] = positions + 1
        residents.positions = np.where(residents.active, residents.positions + 1, -1)
        return command

    def _require_residents(self) -> _Residents:
        if self._residents is None:
            raise RuleBroken(Rule.LATE_RELOAD, "the first decode did not reload its inputs")
        return self._residents

    def _check_tables(self, active: npt.NDArray[np.bool_], positions: Ints, tables: HostTables) -> None:
        for table, window in zip(tables.tables, tables.windows, strict=True):
            for row in np.flatnonzero(active).tolist():
                position = int(positions[row])
                if position >= self.geometry.max_seq_len:
                    raise RuleBroken(Rule.INPUT_SHAPE, f"row {row} is at position {position}, beyond the model")
                self._check_row(table[row], position, position + 1, window, f"row {row}")

    def _check_row(self, table: Table, start: int, end: int, window: int | None, who: str) -> None:
        block, blocks = self.geometry.block_size, self.geometry.num_blocks
        used = -(-end // block)
        if used > len(table):
            raise RuleBroken(Rule.INPUT_SHAPE, f"{who} needs {used} blocks, the page table has {len(table)}")
        if table[used:].any():
            raise RuleBroken(Rule.STALE_BLOCK, f"{who} has block {int(table[used:].max())} beyond its {used} live ones")
        first = 0 if window is None else max(start - window + 1, 0) // block
        live = table[first:used]
        if (live == 0).any():
            page = first + int(np.argmax(live == 0))
            raise RuleBroken(Rule.STALE_BLOCK, f"{who} has the null block at positions from {page * block} on")
        if table[:used].min() < 0 or table[:used].max() >= blocks:
            raise RuleBroken(Rule.STALE_BLOCK, f"{who} has a block outside 0 to {blocks - 1}")

    def _check_writes(self, rows: Ints, positions: Ints, tables: HostTables) -> None:
        """No row may write a block that another active row of its lane has among its live ones."""
        block = self.geometry.block_size
        pages = positions // block
        for table in tables.tables:
            live = table[rows].astype(np.int64)
            live[np.arange(live.shape[1])[None, :] > pages[:, None]] = 0
            lanes = rows // self.geometry.rows_per_lane
            owned = live + lanes[:, None] * self.geometry.num_blocks
            written = owned[np.arange(len(rows)), pages]
            counts = np.bincount(owned[live > 0], minlength=self.geometry.lanes * self.geometry.num_blocks)
            clash = counts[written] > 1
            if clash.any():
                row = int(np.argmax(clash))
                raise RuleBroken(
                    Rule.STALE_BLOCK,
                    f"row {int(rows[row])} writes block {int(live[row, pages[row]])}, which its lane shares",
                )
