"""The phase policy: prefill first, decodes never starve, probes that place nothing do not repeat for ever."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepshape.domain.phase import Cadence, PhasePolicy
from stepshape.ports.lane import LaneSnapshot
from stepshape.ports.step import Phase

from ..builders import snapshot


def run(policy: PhasePolicy, steps: int, *lanes: LaneSnapshot) -> str:
    """The phases chosen over ``steps`` steps with the same load, as letters."""
    letters = ""
    for _ in range(steps):
        choice = policy.choose(lanes)
        policy.record(choice.phase, prefill_pending=any(lane.wants_prefill for lane in lanes))
        letters += choice.phase.value[0].upper()
    return letters


def test_two_prefill_steps_then_one_decode_step() -> None:
    assert run(PhasePolicy(Cadence()), 9, snapshot(decodes=1, continuations=1)) == "PPDPPDPPD"


def test_more_decode_steps_when_asked() -> None:
    assert run(PhasePolicy(Cadence(decode_steps=2)), 8, snapshot(decodes=1, continuations=1)) == "PPDDPPDD"


def test_prefill_runs_through_when_nothing_decodes() -> None:
    assert run(PhasePolicy(Cadence()), 6, snapshot(continuations=1)) == "PPPPPP"


def test_cadence_off_means_prefill_first() -> None:
    assert run(PhasePolicy(Cadence(enabled=False)), 4, snapshot(decodes=1, continuations=1)) == "PPPP"


def test_a_decode_with_nothing_pending_spends_nothing() -> None:
    """Field case 1: decodes taken while no prefill is pending must not cost the next prompt its first prefill step."""
    policy = PhasePolicy(Cadence())
    assert run(policy, 5, snapshot(decodes=1)) == "DDDDD"
    assert run(policy, 3, snapshot(decodes=1, waiting=1)) == "PPD"


def test_a_full_lane_does_not_ask_for_prefill() -> None:
    """Waiting requests without a row to go to are no reason to stop decoding, nor to schedule twice."""
    assert run(PhasePolicy(Cadence()), 3, snapshot(waiting=5, decodes=8, rows=8)) == "DDD"


def test_one_lane_with_prefill_sets_the_phase_of_all() -> None:
    lanes = (snapshot(decodes=8, rows=8), snapshot(waiting=1), snapshot())
    assert PhasePolicy(Cadence()).choose(lanes).phase is Phase.PREFILL


def test_idle_is_empty() -> None:
    choice = PhasePolicy(Cadence()).choose([snapshot(), snapshot()])
    assert (choice.phase, choice.why) == (Phase.EMPTY, "idle")


def test_probes_that_place_nothing_back_off() -> None:
    """KV pressure: after each empty prefill pass the next one waits 1, 2, 4, 8, 8 decode steps."""
    policy = PhasePolicy(Cadence())
    lanes = [snapshot(waiting=1, decodes=3)]
    gaps: list[int] = []
    gap = 0
    while len(gaps) < 6:
        choice = policy.choose(lanes)
        if choice.phase is Phase.PREFILL:
            gaps.append(gap)
            policy.prefill_placed_nothing()
            gap = 0
        else:
            gap += 1
        policy.record(Phase.DECODE, prefill_pending=True)
    # The step that probed ran as a decode itself, which is the first of the wait.
    assert gaps == [0, 0, 1, 3, 7, 7]


def test_room_ends_the_wait() -> None:
    policy = PhasePolicy(Cadence())
    lanes = [snapshot(waiting=1, decodes=3)]
    for _ in range(3):
        policy.prefill_placed_nothing()
    assert policy.choose(lanes).phase is Phase.DECODE
    policy.room_appeared()
    assert policy.choose(lanes).phase is Phase.PREFILL


def test_a_wait_ends_when_nothing_decodes_any_more() -> None:
    """Else a request would be parked for ever behind decodes that are gone."""
    policy = PhasePolicy(Cadence())
    policy.prefill_placed_nothing()
    assert policy.choose([snapshot(waiting=1)]).phase is Phase.PREFILL


@pytest.mark.parametrize("steps", [0, -1])
def test_cadence_needs_positive_counts(steps: int) -> None:
    with pytest.raises(ValueError, match="prefill_steps"):
        Cadence(prefill_steps=steps)


loads = st.builds(
    snapshot,
    waiting=st.integers(0, 3),
    continuations=st.integers(0, 2),
    decodes=st.integers(0, 2),
    rows=st.just(4),
)


@given(
    prefill=st.integers(1, 4),
    decode=st.integers(1, 3),
    trace=st.lists(st.tuples(loads, loads, st.booleans()), max_size=40),
)
def test_a_decode_moves_at_least_once_in_every_p_plus_d_steps(
    prefill: int, decode: int, trace: list[tuple[LaneSnapshot, LaneSnapshot, bool]]
) -> None:
    """Whatever arrives and whatever probes come back empty: while something decodes, never more than P prefill steps
    run between two decode steps, and with work there is never an idle step."""
    policy = PhasePolicy(Cadence(prefill_steps=prefill, decode_steps=decode))
    since_decode = 0
    for first, second, places in trace:
        lanes = [first, second]
        pending = any(lane.wants_prefill for lane in lanes)
        decoding = any(lane.decodes for lane in lanes)
        phase = policy.choose(lanes).phase
        if pending or decoding:
            assert phase is not Phase.EMPTY
        if phase is Phase.PREFILL and decoding and not places:
            policy.prefill_placed_nothing()
            phase = Phase.DECODE
        policy.record(phase, prefill_pending=pending)
        since_decode = since_decode + 1 if phase is Phase.PREFILL and decoding else 0
        assert since_decode <= prefill
