"""How an engine that was told to end ends."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stepshape.domain.closing import CLOSING_SECONDS, drain_seconds
from stepshape.domain.rules import SHUTDOWN_SECONDS


@given(st.floats(0.0, 1e6))
def test_half_of_the_time_or_the_usual_is_left_for_closing(timeout: float) -> None:
    left = timeout - drain_seconds(timeout)
    assert left >= min(timeout / 2, CLOSING_SECONDS) - 1e-6
    assert 0.0 <= drain_seconds(timeout) <= timeout


def test_seconds_of_drain() -> None:
    assert drain_seconds(SHUTDOWN_SECONDS) == 5.0
    assert drain_seconds(120) == 110.0
    assert drain_seconds(0) == 0.0
