"""Lanes' passes to one plan: rows, chunks, sampling path, reload commands, overlap."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

from stepshape.ports.capabilities import ModelCapabilities
from stepshape.ports.sampling import HostReason, SampleOnDevice, SamplingTraits
from stepshape.ports.step import Growth, Phase, Release, ReloadCommands, StepPlan

from ..builders import arrival, decode_step, plan_decode, plan_prefill, planner, prefill_step

IDLE = decode_step()
RELOAD_ALL = ReloadCommands(inputs=True, sampling_params=True, reset_sampling_state=True)


def test_prefill_gives_each_arrival_the_lowest_row_of_its_lane() -> None:
    plan = plan_prefill(
        planner(lanes=2, rows=4), prefill_step(arrival("a", 5), arrival("b", 3)), prefill_step(arrival("c", 7))
    )
    assert plan.phase is Phase.PREFILL
    assert (list(plan.request_ids), list(plan.rows)) == (["a", "b", "c"], [0, 1, 4])
    assert (list(plan.starts), list(plan.ends), list(plan.emits)) == ([0, 0, 0], [5, 3, 7], [True] * 3)
    assert [a.row for a in plan.admitted] == [0, 1, 4]
    assert plan.admitted[2].params == "params of c"


def test_a_chunk_that_stops_short_emits_nothing_and_has_no_path() -> None:
    p = planner()
    plan = plan_prefill(p, prefill_step(arrival("long", 10), chunk=4))
    assert (list(plan.ends), list(plan.emits), plan.path.num_rows) == ([4], [False], 0)
    plan = plan_prefill(p, prefill_step(continued=[("long", 4, 6)]))
    assert (list(plan.starts), list(plan.ends), list(plan.emits), plan.path.num_rows) == ([4], [10], [True], 1)
    assert plan.admitted == ()


def test_the_first_decode_after_a_prefill_reloads_and_drains() -> None:
    p = planner()
    plan_prefill(p, prefill_step(arrival("a")))
    plan = plan_decode(p, decode_step(("a", 4)))
    assert plan.reload == RELOAD_ALL
    assert (plan.keep_overlap, plan.overlap_why) == (False, "a prefill ran since the last decode")


def test_steady_decode_reloads_nothing_keeps_overlap_and_reuses_its_rows() -> None:
    p = planner(lanes=2)
    plan_prefill(p, prefill_step(arrival("a")), prefill_step(arrival("b")))
    first = plan_decode(p, decode_step(("a", 4)), decode_step(("b", 4)))
    second = plan_decode(p, decode_step(("a", 5)), decode_step(("b", 5)))
    assert second.same_rows and not first.same_rows
    assert second.rows is first.rows and second.request_ids is first.request_ids and second.path is first.path
    assert second.reload == ReloadCommands()
    assert (second.keep_overlap, second.overlap_why) == (True, "steady decode")
    assert list(second.starts) == [5, 5]


def test_a_grown_row_reloads_page_tables_only() -> None:
    p = planner()
    plan_prefill(p, prefill_step(arrival("a"), arrival("b")))
    plan_decode(p, decode_step(("a", 4), ("b", 4)))
    plan = plan_decode(p, decode_step(("a", 5), ("b", 5), grown=["b"]))
    assert plan.grown == (Growth(1, ([9],)),)
    assert plan.reload == ReloadCommands(page_table=True)
    assert plan.keep_overlap


def test_a_finished_row_is_released_and_the_rest_reload() -> None:
    """Field case 30: drained because the layout changed, and the lane-local slot is offset by the lane's capacity."""
    p = planner(lanes=2, rows=4)
    plan_prefill(p, prefill_step(arrival("a")), prefill_step(arrival("b"), arrival("c")))
    plan_decode(p, decode_step(("a", 4)), decode_step(("b", 4), ("c", 4)))
    plan = plan_decode(p, decode_step(("a", 5)), decode_step(("c", 5), finished=["b"]))
    assert plan.released == (Release("b", 4),)
    assert list(plan.rows) == [0, 5]
    assert plan.reload == RELOAD_ALL
    assert (plan.keep_overlap, plan.overlap_why) == (False, "the set of decoding rows changed")


def test_a_row_freed_in_a_step_can_be_taken_in_it() -> None:
    p = planner(rows=1)
    plan_prefill(p, prefill_step(arrival("a")))
    plan = plan_prefill(p, prefill_step(arrival("b"), finished=["a"]))
    assert plan.released == (Release("a", 0),)
    assert plan.admitted[0].row == 0


def test_a_preempted_request_gives_its_row_back_and_comes_back_as_an_arrival() -> None:
    """Field case 32: with every row in use, preemption frees one."""
    p = planner(rows=2)
    plan_prefill(p, prefill_step(arrival("a"), arrival("b")))
    plan = plan_decode(p, decode_step(("a", 4), preempted=["b"]))
    assert plan.released == (Release("b", 1),)
    plan = plan_prefill(p, prefill_step(arrival("c"), arrival("b", 6, resumed=True), finished=["a"]))
    assert [(a.request_id, a.row, a.resumed) for a in plan.admitted] == [("c", 0, False), ("b", 1, True)]


def test_a_request_that_resumes_on_another_row_decodes_there() -> None:
    """The same ids decode as before the preemption, and nothing else of that batch is true any more."""
    p = planner(rows=2)
    plan_prefill(p, prefill_step(arrival("x"), arrival("a")))
    plan_decode(p, decode_step(("a", 4), finished=["x"]))
    plan_prefill(p, prefill_step(arrival("c", 10), chunk=4))
    plan_decode(p, decode_step(preempted=["a"]))
    plan_prefill(p, prefill_step(arrival("a", 5, resumed=True), finished=["c"]))
    plan = plan_decode(p, decode_step(("a", 5)))
    assert (list(plan.rows), plan.same_rows) == ([0], False)
    assert plan.reload == RELOAD_ALL


class Engine(RuleBasedStateMachine):
    """Any order of admitting, decoding, finishing and preempting: every decode runs its requests on the rows they were
    admitted to, and rows are kept, conserved and never shared."""

    def __init__(self) -> None:
        super().__init__()
        self.planner = planner(rows=2)
        self.row: dict[str, int] = {}
        self.count = 0
        self.preempted: list[str] = []
        self.gone: list[tuple[str, bool]] = []

    def finished(self) -> list[str]:
        return [name for name, kept in self.gone if not kept]

    def lost(self) -> list[str]:
        return [name for name, kept in self.gone if kept]

    def check(self, plan: StepPlan[str]) -> None:
        assert {r.request_id for r in plan.released} == {name for name, _ in self.gone}
        self.gone = []
        for admission in plan.admitted:
            assert admission.row not in self.row.values()
            self.row[admission.request_id] = admission.row
        assert [self.row[name] for name in plan.request_ids] == list(plan.rows)

    @precondition(lambda self: len(self.row) < 2)
    @rule(again=st.booleans())
    def admit(self, again: bool) -> None:
        if again and self.preempted:
            name = self.preempted.pop(0)
        else:
            self.count += 1
            name = f"r{self.count}"
        step = prefill_step(arrival(name), finished=self.finished(), preempted=self.lost())
        self.check(plan_prefill(self.planner, step))

    @rule()
    def decode(self) -> None:
        decoding = [(name, 4) for name in self.row]
        step = decode_step(*decoding, finished=self.finished(), preempted=self.lost())
        self.check(plan_decode(self.planner, step))

    @precondition(lambda self: self.row)
    @rule(index=st.integers(0, 1), keep=st.booleans())
    def leave(self, index: int, keep: bool) -> None:
        name = sorted(self.row)[index % len(self.row)]
        del self.row[name]
        self.gone.append((name, keep))
        if keep:
            self.preempted.append(name)


TestEngine = Engine.TestCase
TestEngine.settings = settings(max_examples=30, stateful_step_count=15)


def test_preempted_and_resumed_in_one_step() -> None:
    """``reset_prefix_cache`` with running requests does this."""
    p = planner(rows=2)
    plan_prefill(p, prefill_step(arrival("a")))
    plan = plan_prefill(p, prefill_step(arrival("a", 5, resumed=True), preempted=["a"]))
    assert plan.released == (Release("a", 0),)
    assert plan.admitted[0].row == 0


def test_a_session_that_gets_more_input_arrives_again_on_its_row() -> None:
    """It kept its row, and its KV, while it waited for input."""
    p = planner(rows=2)
    plan_prefill(p, prefill_step(arrival("a"), arrival("s")))
    plan_decode(p, decode_step(("a", 4), ("s", 4)))
    plan = plan_prefill(p, prefill_step(arrival("s", 9, computed=5)))
    assert plan.released == (Release("s", 1),)
    assert [(a.request_id, a.row) for a in plan.admitted] == [("s", 1)]
    assert (list(plan.starts), list(plan.ends)) == ([5], [9])


def test_a_release_in_an_empty_step_is_not_forgotten() -> None:
    p = planner()
    plan_prefill(p, prefill_step(arrival("a"), arrival("b")))
    plan_decode(p, decode_step(("a", 4), ("b", 4)))
    assert plan_decode(p, decode_step(finished=["b"])).phase is Phase.EMPTY
    assert plan_decode(p, decode_step(("a", 5))).reload.inputs


def test_host_rows_make_the_next_decode_load_their_tokens() -> None:
    p = planner()
    plan_prefill(p, prefill_step(arrival("plain"), arrival("min_p", traits=SamplingTraits(min_p=True, top_k=5))))
    first = plan_decode(p, decode_step(("plain", 4), ("min_p", 4)))
    assert (first.path.host, dict(first.path.reasons)) == ((1,), {HostReason.MIN_P: 1})
    second = plan_decode(p, decode_step(("plain", 5), ("min_p", 5)))
    assert second.reload == ReloadCommands(inputs=True)
    assert (second.keep_overlap, second.overlap_why) == (False, "the last tokens were chosen on the host")


def test_without_async_scheduling_nothing_overlaps() -> None:
    p = planner(asynchronous=False)
    plan_prefill(p, prefill_step(arrival("a")))
    plan_decode(p, decode_step(("a", 4)))
    plan = plan_decode(p, decode_step(("a", 5)))
    assert (plan.keep_overlap, plan.overlap_why) == (False, "async scheduling is off")
    assert plan.reload == ReloadCommands()  # the device's inputs are resident all the same


def test_a_model_without_resident_inputs_always_reloads() -> None:
    p = planner(capabilities=ModelCapabilities(supports_sample_on_device=True))
    plan_prefill(p, prefill_step(arrival("a")))
    plan_decode(p, decode_step(("a", 4)))
    assert plan_decode(p, decode_step(("a", 5))).reload.inputs


def test_a_model_that_reads_prefills_at_once_drains_before_them() -> None:
    assert plan_prefill(planner(), prefill_step(arrival("a"))).keep_overlap
    able = ModelCapabilities(supports_sample_on_device=True, supports_async_decode=True)
    plan = plan_prefill(planner(capabilities=able), prefill_step(arrival("a")))
    assert (plan.keep_overlap, plan.overlap_why) == (False, "the model reads prefills at once")


def test_the_smallest_declared_batch_that_covers_the_live_rows_runs() -> None:
    p = planner(rows=32, capabilities=ModelCapabilities(decode_batch_sizes=(1, 8, 32)), mode=SampleOnDevice.OFF)
    plan_prefill(p, prefill_step(arrival("a"), arrival("b")))
    assert plan_decode(p, decode_step(("a", 4))).batch_size == 1
    assert plan_decode(p, decode_step(("a", 5), ("b", 4))).batch_size == 8
    lanes = planner(lanes=2, rows=16, capabilities=ModelCapabilities(decode_batch_sizes=(1, 8, 32)))
    plan_prefill(lanes, prefill_step(arrival("a")), IDLE_PREFILL)
    assert plan_decode(lanes, decode_step(("a", 4)), IDLE).batch_size == 32


IDLE_PREFILL = prefill_step()


def test_an_idle_lane_adds_nothing() -> None:
    plan = plan_prefill(planner(lanes=3), IDLE_PREFILL, prefill_step(arrival("a")), IDLE_PREFILL)
    assert list(plan.rows) == [4]


def test_a_decode_step_with_an_arrival_is_an_impossible_state() -> None:
    with pytest.raises(LookupError, match=r"need a prefill: \['a'\]"):
        plan_decode(planner(), prefill_step(arrival("a")))


def test_a_decode_of_a_request_without_a_row_names_it() -> None:
    with pytest.raises(LookupError, match="'ghost' was scheduled and holds no row"):
        plan_decode(planner(), decode_step(("ghost", 4)))
