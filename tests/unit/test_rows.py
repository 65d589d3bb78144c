"""Rows are stable, conserved, lowest first, and never guessed."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from stepshape.domain.lanes import LaneLoad, least_loaded
from stepshape.domain.rows import RowTable


def test_the_lowest_free_row_of_the_lane_is_handed_out() -> None:
    table = RowTable(lanes=2, rows_per_lane=3)
    assert [table.assign(1, i) for i in "abc"] == [3, 4, 5]
    table.release("b")
    table.release("a")
    assert table.assign(1, "d") == 3
    assert table.assign(0, "e") == 0


def test_a_full_lane_says_who_holds_it() -> None:
    table = RowTable(lanes=1, rows_per_lane=1)
    table.assign(0, "a")
    with pytest.raises(LookupError, match=r"lane 0 has no free row for 'b'; held by \['a'\]"):
        table.assign(0, "b")


def test_a_request_cannot_hold_two_rows() -> None:
    table = RowTable(lanes=1, rows_per_lane=2)
    table.assign(0, "a")
    with pytest.raises(LookupError, match="already holds row 0"):
        table.assign(0, "a")


def test_an_unknown_request_is_named() -> None:
    table = RowTable(lanes=1, rows_per_lane=2)
    table.assign(0, "a")
    with pytest.raises(LookupError, match="'ghost' was scheduled and holds no row"):
        table.rows_of(["a", "ghost"])


def test_releasing_what_never_ran_is_nothing() -> None:
    assert RowTable(lanes=1, rows_per_lane=2).release("never") is None


class Rows(RuleBasedStateMachine):
    """Any order of assigning and releasing: no row has two owners and none is lost."""

    held = Bundle("held")

    def __init__(self) -> None:
        super().__init__()
        self.table = RowTable(lanes=2, rows_per_lane=3)
        self.owner: dict[int, str] = {}
        self.count = 0

    @rule(target=held, lane=st.integers(0, 1))
    def assign(self, lane: int) -> str | None:
        self.count += 1
        name = f"r{self.count}"
        lane_rows = range(lane * 3, lane * 3 + 3)
        free = [row for row in lane_rows if row not in self.owner]
        if not free:
            with pytest.raises(LookupError):
                self.table.assign(lane, name)
            return None
        row = self.table.assign(lane, name)
        assert row == free[0]
        self.owner[row] = name
        return name

    @rule(name=consumes(held))
    def release(self, name: str | None) -> None:
        if name is None:
            return
        row = self.table.release(name)
        assert row is not None
        assert self.owner.pop(row) == name

    @invariant()
    def conserved(self) -> None:
        assert len(self.table) == len(self.owner)
        for row, name in self.owner.items():
            assert self.table.row_of(name) == row


TestRows = Rows.TestCase
TestRows.settings = settings(max_examples=40, stateful_step_count=20)


def test_the_least_loaded_lane_wins_and_ties_go_to_the_lowest() -> None:
    assert least_loaded([LaneLoad(0, 3), LaneLoad(0, 2), LaneLoad(0, 2)]) == 1
    # A waiting request weighs as much as four running ones.
    assert least_loaded([LaneLoad(1, 0), LaneLoad(0, 3)]) == 1
    assert least_loaded([LaneLoad(1, 0), LaneLoad(0, 5)]) == 0
