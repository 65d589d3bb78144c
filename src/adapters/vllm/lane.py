"""A lane on vLLM's own scheduler: one phase at a time, everything else as upstream does it."""
from __future__ import annotations

from typing import Any

from vllm import SamplingParams
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.metrics.stats import SchedulerStats

from ...ports.lane import Arrival, LaneSnapshot, LaneStep
from ...ports.step import Phase
from .decode_pass import can_take_short_passes, short_decode_pass
from .releases.step_records import counts_executed_steps
from .sampling_traits import sampling_traits


class LaneScheduler(AsyncScheduler):
    """Token budget, chunks, prefix cache, blocks and preemption are upstream's. What is ours is which requests a
    pass can see: ``running`` holds only the phase's own requests while upstream's ``schedule`` runs, and in a decode
    pass nothing is admitted, so that no queue is ever emptied or swapped (waiting requests stay where abort
    and metrics look for them).
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # The newer runner contract: a resumed request arrives among the new ones with all its tokens. Under the
        # older one upstream copies the whole token list of every request that sat out a step, at every phase switch.
        self.use_v2_model_runner = True
        # Up to 0.30 there is one cap, on running requests; since 0.31 admission has its own. Both are set in a pass.
        self.max_num_active_reqs: int = vars(self).get("max_num_active_reqs", self.max_num_running_reqs)
        self.counts_executed_steps = counts_executed_steps(self)
        self.short_passes = can_take_short_passes(self)
        """False makes every decode pass upstream's own; the tests hold both against each other"""
        self._custom_processors = bool(self.vllm_config.model_config.logits_processors)

    def snapshot(self) -> LaneSnapshot:
        continuations = 0
        for request in self.running:
            if request.is_prefill_chunk:
                continuations += 1
        return LaneSnapshot(
            waiting=self.get_request_counts()[1],
            continuations=continuations,
            decodes=len(self.running) - continuations,
            rows=self.max_num_running_reqs,
        )

    def schedule_phase(self, phase: Phase) -> SchedulerOutput:
        if phase is Phase.PREFILL:
            return self._schedule_prefill()
        return self._schedule_decode()

    def _schedule_prefill(self) -> SchedulerOutput:
        decodes = [r for r in self.running if not r.is_prefill_chunk]
        if not decodes:
            return super().schedule()
        running_cap, active_cap = self.max_num_running_reqs, self.max_num_active_reqs
        self.running = [r for r in self.running if r.is_prefill_chunk]
        self.max_num_running_reqs = running_cap - len(decodes)
        self.max_num_active_reqs = max(active_cap - len(decodes), 0)
        try:
            return super().schedule()
        finally:
            # Decodes are older than what this pass admitted: keeping them in front keeps arrival order, and
            # upstream preempts from the tail.
            self.running = decodes + self.running
            self.max_num_running_reqs, self.max_num_active_reqs = running_cap, active_cap

    def _schedule_decode(self) -> SchedulerOutput:
        continuations = [r for r in self.running if r.is_prefill_chunk]
        if self.short_passes:
            decodes = [r for r in self.running if not r.is_prefill_chunk] if continuations else self.running
            short = short_decode_pass(self, decodes)
            if short is not None:
                return short
        running_cap, active_cap = self.max_num_running_reqs, self.max_num_active_reqs
        if continuations:
            self.running = [r for r in self.running if not r.is_prefill_chunk]
        self.max_num_running_reqs, self.max_num_active_reqs = len(self.running), 0
        try:
            return super().schedule()
        finally:
            self.max_num_running_reqs, self.max_num_active_reqs = running_cap, active_cap
            if continuations:
                self.running = self.running + continuations

    def lane_step(self, output: SchedulerOutput, phase: Phase) -> LaneStep[SamplingParams]:
        """The pass in the core's words."""
        cached = output.scheduled_cached_reqs
        preempted = output.preempted_req_ids or ()
        if phase is not Phase.PREFILL:
            return LaneStep(
                finished=tuple(output.finished_req_ids),
                preempted=tuple(preempted),
                arrivals=() if not output.scheduled_new_reqs else tuple(map(self._arrival, output.scheduled_new_reqs)),
                cached=cached.req_ids,
                blocks=cached.new_block_ids,
                computed=cached.num_computed_tokens,
            )
        order = [new.req_id for new in output.scheduled_new_reqs] + cached.req_ids
        return LaneStep(
            finished=tuple(output.finished_req_ids),
            preempted=tuple(preempted),
            arrivals=tuple(map(self._arrival, output.scheduled_new_reqs)),
            cached=cached.req_ids,
            blocks=cached.new_block_ids,
            computed=cached.num_computed_tokens,
            scheduled=[output.num_scheduled_tokens[i] for i in order],
            emits=[not self.requests[i].is_prefill_chunk for i in order],
        )

    def _arrival(self, new: Any) -> Arrival[SamplingParams]:
        request = self.requests[new.req_id]
        params = new.sampling_params
        if params is None or new.prompt_token_ids is None:
            raise LookupError(
                f"request {new.req_id!r} has no sampling parameters or no token ids; it should have been refused at "
                "admission"
            )
        return Arrival(
            request_id=new.req_id,
            token_ids=new.prefill_token_ids if new.prefill_token_ids is not None else new.prompt_token_ids,
            prompt_length=request.num_prompt_tokens,
            blocks=new.block_ids,
            computed=new.num_computed_tokens,
            resumed=request.num_preemptions > 0,
            traits=sampling_traits(params, custom_processors=self._custom_processors),
            params=params,
        )

    def _make_cached_request_data(
        self,
        running_reqs: list[Any],
        resumed_reqs: list[Any],
        num_scheduled_tokens: dict[str, int],
        spec_decode_tokens: dict[str, list[int]],
        req_to_new_blocks: dict[str, Any],
    ) -> CachedRequestData:
        """Upstream's, without what only its own runners read (tokens for pipeline stages and connectors)."""
        if resumed_reqs:
            raise LookupError(f"resumed requests outside the new ones: {[r.request_id for r in resumed_reqs]}")
        return CachedRequestData(
            req_ids=[r.request_id for r in running_reqs],
            resumed_req_ids=set(),
            new_token_ids=[],
            all_token_ids={},
            new_block_ids=[req_to_new_blocks[r.request_id].get_block_ids(allow_none=True) for r in running_reqs],
            num_computed_tokens=[r.num_computed_tokens for r in running_reqs],
            num_output_tokens=[r.num_output_tokens + r.num_output_placeholders for r in running_reqs],
        )

    def make_stats(self, *args: Any, **kwargs: Any) -> SchedulerStats | None:
        """None: upstream asks every lane within ``update_from_output``; the coordinator asks once a step."""
        return None

    def lane_stats(self) -> SchedulerStats | None:
        return super().make_stats()
