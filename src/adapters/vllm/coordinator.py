"""The scheduler that vLLM's engine sees: N lanes, one phase, one plan a step. A plain engine is one lane."""
from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Iterable
from typing import Any

import attrs
from vllm import SamplingParams
from vllm.multimodal import MULTIMODAL_REGISTRY, MultiModalRegistry
from vllm.v1.core.sched.interface import PauseState, SchedulerInterface
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.metrics.stats import SchedulerStats
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus
from vllm.v1.structured_output import StructuredOutputManager

from ...domain.lanes import LaneLoad, least_loaded
from ...domain.merge import Planner
from ...domain.phase import PhaseChoice, PhasePolicy
from ...ports.lane import LaneStep
from ...ports.step import Phase
from .closing import Closing
from .ended import EndedRequests, add_outputs, explain_rejected_tokens
from .lane import LaneScheduler
from .lane_stats import merge_stats
from .merge_outputs import check_fields, merge_outputs
from .outputs import PlannedRunnerOutput, PlannedSchedulerOutput
from .releases.termination import when_engine_is_told_to_end
from .settings import EngineSettings


class Coordinator(SchedulerInterface):
    """Owns the lanes, the phase policy and the planner; holds no queue of its own. A platform's subclass says where
    its settings stand."""

    @abstractmethod
    def read_settings(self, vllm_config: Any) -> EngineSettings: ...

    def __init__(
        self,
        vllm_config: Any,
        kv_cache_config: Any,
        structured_output_manager: StructuredOutputManager,
        block_size: int,
        hash_block_size: int | None = None,
        mm_registry: MultiModalRegistry = MULTIMODAL_REGISTRY,
        include_finished_set: bool = False,
        log_stats: bool = False,
    ) -> None:
        check_fields()
        settings = self.read_settings(vllm_config)
        # The engine asks for these two on any scheduler (v1/engine/core.py). Connectors are refused at start.
        self.connector = None
        self.ec_connector = None
        self.structured_output_manager = structured_output_manager
        lane_config = copy.copy(vllm_config)
        lane_config.scheduler_config = copy.copy(vllm_config.scheduler_config)
        lane_config.scheduler_config.max_num_seqs = settings.rows_per_lane
        self.lanes = [
            LaneScheduler(
                vllm_config=lane_config,
                kv_cache_config=kv_cache_config,
                structured_output_manager=structured_output_manager,
                block_size=block_size,
                hash_block_size=hash_block_size,
                mm_registry=mm_registry,
                include_finished_set=include_finished_set,
                log_stats=log_stats,
            )
            for _ in range(settings.lanes)
        ]
        self._lane_of: dict[str, LaneScheduler] = {}
        self._ended = EndedRequests()
        self._closing = Closing(vllm_config.shutdown_timeout)
        when_engine_is_told_to_end(self._closing.told)
        self._policy = PhasePolicy(settings.cadence)
        self._planner: Planner[SamplingParams] = Planner(
            lanes=settings.lanes,
            rows_per_lane=settings.rows_per_lane,
            sampling=settings.sampling,
            capabilities=settings.sampling.capabilities,
            asynchronous=vllm_config.scheduler_config.async_scheduling,
        )

    # -- one step ------------------------------------------------------------------------------------------------

    def schedule(self, throttle_prefills: bool = False) -> PlannedSchedulerOutput:
        """``throttle_prefills`` is for engines that share a cadence over processes; ours is inside one."""
        if self._closing.time_is_up:
            self._ended.add(self.finish_requests(None, RequestStatus.FINISHED_ABORTED))
        snapshots = [lane.snapshot() for lane in self.lanes]
        pending = any(s.wants_prefill for s in snapshots)
        choice = self._policy.choose(snapshots)
        outputs = self._pass(choice.phase)
        discarded: list[SchedulerOutput] = []
        if choice.phase is Phase.PREFILL:
            if any(o.total_num_scheduled_tokens for o in outputs):
                self._policy.room_appeared()
            elif any(s.decodes for s in snapshots):
                # Without this retry KV pressure is a loop: prefill is chosen because a lane wants it, places nothing
                # because no block is free, and the decode that would free one never runs (contract 5.6). The
                # discarded pass handed out lifecycle events that nobody will hand out again.
                self._policy.prefill_placed_nothing()
                discarded = outputs
                choice = PhaseChoice(Phase.DECODE, "the prefill pass placed nothing")
                outputs = self._pass(Phase.DECODE)
        self._policy.record(choice.phase, prefill_pending=pending)

        steps = [lane.lane_step(o, choice.phase) for lane, o in zip(self.lanes, outputs, strict=True)]
        finished = {i for o in outputs for i in o.finished_req_ids}
        preempted = {i for o in outputs for i in o.preempted_req_ids or ()}
        if discarded:
            steps, finished, preempted = _carry(discarded, steps, finished, preempted)
        plan = self._planner.plan(choice, steps)
        for request_id in finished:
            lane = self._lane_of.get(request_id)
            # Not if the client came back under the same id in the meantime.
            if lane is not None and request_id not in lane.requests:
                del self._lane_of[request_id]
        if plan.released:
            self._policy.room_appeared()
        return merge_outputs(outputs, plan, preempted, finished)

    def _pass(self, phase: Phase) -> list[SchedulerOutput]:
        return [lane.schedule_phase(phase) for lane in self.lanes]

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        if not isinstance(scheduler_output, PlannedSchedulerOutput):
            raise TypeError(f"the coordinator planned no {type(scheduler_output).__name__}; it was changed on the way")
        merged: dict[int, EngineCoreOutputs] = {}
        for lane, output in zip(self.lanes, scheduler_output.lane_outputs, strict=True):
            for client, outputs in lane.update_from_output(output, model_runner_output).items():
                add_outputs(merged, client, outputs)
        if isinstance(model_runner_output, PlannedRunnerOutput) and model_runner_output.failed:
            failed = model_runner_output.failed
            self._ended.add(self.finish_requests(list(failed), RequestStatus.FINISHED_ERROR), failed)
        self._ended.tell(merged)
        if scheduler_output.has_structured_output_requests:
            explain_rejected_tokens(merged)
        stats = self.make_stats()
        if stats is not None:
            first = next(iter(merged.values()), None)
            if first is None:
                first = merged[0] = EngineCoreOutputs()
            first.scheduler_stats = stats
        return merged

    def get_grammar_bitmask(self, scheduler_output: SchedulerOutput) -> GrammarOutput | None:
        if not scheduler_output.has_structured_output_requests:
            return None
        requests: dict[str, Request] = {}
        for request_id in scheduler_output.num_scheduled_tokens:
            lane = self._lane_of.get(request_id)
            request = lane.requests.get(request_id) if lane is not None else None
            if request is not None and request.use_structured_output and not request.is_prefill_chunk:
                requests[request_id] = request
        if not requests:
            return None
        ids = list(requests)
        bitmask = self.structured_output_manager.grammar_bitmask(requests, ids, {})
        return None if bitmask is None else GrammarOutput(ids, bitmask, [0] * len(ids))

    # -- requests ------------------------------------------------------------------------------------------------

    def add_request(self, request: Request) -> None:
        lane = self._lane_of.get(request.request_id)
        if lane is None:
            loads = [LaneLoad(waiting=w, running=r) for r, w in (lane.get_request_counts() for lane in self.lanes)]
            lane = self.lanes[least_loaded(loads)]
            self._lane_of[request.request_id] = lane
        lane.add_request(request)

    def has_request(self, request_id: str) -> bool:
        lane = self._lane_of.get(request_id)
        return lane is not None and request_id in lane.requests

    def finish_requests(
        self, request_ids: str | Iterable[str] | None, finished_status: RequestStatus
    ) -> list[Request]:
        if request_ids is None:
            return [r for lane in self.lanes for r in lane.finish_requests(None, finished_status)]
        ids = [request_ids] if isinstance(request_ids, str) else list(request_ids)
        ended: list[Request] = []
        for lane in self.lanes:
            own = [i for i in ids if self._lane_of.get(i) is lane]
            if own:
                ended += lane.finish_requests(own, finished_status)
        return ended

    def get_request_counts(self) -> tuple[int, int]:
        counts = [lane.get_request_counts() for lane in self.lanes]
        return sum(c[0] for c in counts), sum(c[1] for c in counts)

    def get_num_unfinished_requests(self) -> int:
        return sum(lane.get_num_unfinished_requests() for lane in self.lanes)

    def has_finished_requests(self) -> bool:
        return any(lane.has_finished_requests() for lane in self.lanes)

    # -- lifecycle: every lane, always ---------------------------------------------------------------------------

    @property
    def pause_state(self) -> PauseState:
        return self.lanes[0].pause_state

    def set_pause_state(self, pause_state: PauseState) -> None:
        for lane in self.lanes:
            lane.set_pause_state(pause_state)

    def reset_prefix_cache(self, reset_running_requests: bool = False, reset_connector: bool = False) -> bool:
        # Every lane is reset, also after one that could not be.
        done = [lane.reset_prefix_cache(reset_running_requests, reset_connector) for lane in self.lanes]
        return all(done)

    def reset_encoder_cache(self) -> None:
        for lane in self.lanes:
            lane.reset_encoder_cache()

    def get_kv_cache_usage(self) -> float:
        return sum(lane.get_kv_cache_usage() for lane in self.lanes) / len(self.lanes)

    def make_stats(self) -> SchedulerStats | None:
        return merge_stats([lane.lane_stats() for lane in self.lanes])

    def update_draft_token_ids(self, draft_token_ids: Any) -> None:
        raise NotImplementedError("speculative decoding is refused at start; no draft tokens can arrive")

    def update_draft_token_ids_in_output(self, draft_token_ids: Any, scheduler_output: SchedulerOutput) -> None:
        raise NotImplementedError("speculative decoding is refused at start; no draft tokens can arrive")

    def shutdown(self) -> None:
        for lane in self.lanes:
            lane.shutdown()


def _carry(
    discarded: list[SchedulerOutput],
    steps: list[LaneStep[SamplingParams]],
    finished: set[str],
    preempted: set[str],
) -> tuple[list[LaneStep[SamplingParams]], set[str], set[str]]:
    """The second pass with what the first one said of requests that ended or lost their blocks."""
    carried: list[LaneStep[SamplingParams]] = []
    for first, step in zip(discarded, steps, strict=True):
        lost = first.preempted_req_ids or set()
        finished |= first.finished_req_ids
        preempted |= lost
        carried.append(
            attrs.evolve(
                step,
                finished=(*first.finished_req_ids, *step.finished),
                preempted=(*lost, *step.preempted),
            )
        )
    return carried, finished, preempted
