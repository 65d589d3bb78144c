"""Stable rows: a request keeps its row from its first step until it finishes or is preempted (choice 3).

The row is also the device's slot, so nothing is ever moved on the device and no remap is sent. The lowest free
row of a lane is handed out, so that live rows stay low and a smaller batch shape can be used.
"""
from __future__ import annotations

import heapq


class RowTable:
    """request id -> row, for ``lanes * rows_per_lane`` rows; row = lane * rows_per_lane + slot."""

    def __init__(self, lanes: int, rows_per_lane: int) -> None:
        if lanes < 1 or rows_per_lane < 1:
            raise ValueError(f"{lanes} lanes of {rows_per_lane} rows hold nothing; both must be at least 1")
        self.lanes = lanes
        self.rows_per_lane = rows_per_lane
        self._free = [list(range(lane * rows_per_lane, (lane + 1) * rows_per_lane)) for lane in range(lanes)]
        self._row_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._row_of)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._row_of

    def row_of(self, request_id: str) -> int:
        try:
            return self._row_of[request_id]
        except KeyError:
            raise LookupError(
                f"request {request_id!r} was scheduled and holds no row; the step before this one lost it"
            ) from None

    def rows_of(self, request_ids: list[str]) -> list[int]:
        """Rows of several requests, in order. One C-level pass: this runs for every changed decode batch."""
        try:
            return list(map(self._row_of.__getitem__, request_ids))
        except KeyError as error:
            return [self.row_of(error.args[0])]  # raises with the reason

    def assign(self, lane: int, request_id: str) -> int:
        """Give ``request_id`` the lowest free row of ``lane``. Raises LookupError when the lane is full or the
        request has a row: both mean that scheduler and rows disagree, and guessing would corrupt a neighbour."""
        if request_id in self._row_of:
            raise LookupError(f"request {request_id!r} already holds row {self._row_of[request_id]}")
        free = self._free[lane]
        if not free:
            held = [r for r, row in self._row_of.items() if row // self.rows_per_lane == lane]
            raise LookupError(f"lane {lane} has no free row for {request_id!r}; held by {held}")
        row = heapq.heappop(free)
        self._row_of[request_id] = row
        return row

    def release(self, request_id: str) -> int | None:
        """Free the request's row and return it; None if it holds none (it never ran)."""
        row = self._row_of.pop(request_id, None)
        if row is not None:
            heapq.heappush(self._free[row // self.rows_per_lane], row)
        return row
