"""vLLM's schedulers with a cap on the requests that are in their prompt at once, and a timely end."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.engine import EngineCoreOutputs
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import RequestStatus

from ....domain.prefill_cap import admission_cap
from ..closing import Closing
from ..ended import EndedRequests, explain_rejected_tokens
from ..releases.termination import when_engine_is_told_to_end
from .config import resolved


class SpyreScheduler(Scheduler):
    """The cap holds for one call: ``max_num_active_reqs`` (0.31 and later) is what vLLM compares admissions with."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._limit = resolved(self.vllm_config).options.max_partial_prefills
        self._closing = Closing(self.vllm_config.shutdown_timeout)
        self._ended = EndedRequests()
        when_engine_is_told_to_end(self._closing.told)

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        if self._closing.time_is_up:
            # Or the engine is killed while it still drains, with the card open.
            self._ended.add(self.finish_requests(None, RequestStatus.FINISHED_ABORTED))
        own = self.max_num_active_reqs
        self.max_num_active_reqs = admission_cap(
            cap=own,
            running=len(self.running),
            prefilling=sum(request.num_computed_tokens < request.num_prompt_tokens for request in self.running),
            waiting_for_input=self.num_waiting_for_streaming_input,
            limit=self._limit,
        )
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.max_num_active_reqs = own

    def update_from_output(
        self, scheduler_output: SchedulerOutput, model_runner_output: ModelRunnerOutput
    ) -> dict[int, EngineCoreOutputs]:
        outputs: dict[int, EngineCoreOutputs] = super().update_from_output(scheduler_output, model_runner_output)
        self._ended.tell(outputs)
        if scheduler_output.has_structured_output_requests:
            explain_rejected_tokens(outputs)
        return outputs


class SpyreAsyncScheduler(SpyreScheduler, AsyncScheduler):
    """The same over vLLM's asynchronous scheduler."""
