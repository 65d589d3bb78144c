"""vLLM's schedulers with a cap on the requests that are in their prompt at once."""

from __future__ import annotations

from typing import Any

from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.core.sched.scheduler import Scheduler

from ....domain.prefill_cap import admission_cap
from .config import resolved


def _capped(scheduler: Any, cap: int) -> int:
    """The running requests that this step may end with; ``cap`` is the scheduler's own limit."""
    prefilling = sum(request.num_computed_tokens < request.num_prompt_tokens for request in scheduler.running)
    return admission_cap(
        cap=cap,
        running=len(scheduler.running),
        prefilling=prefilling,
        waiting_for_input=scheduler.num_waiting_for_streaming_input,
        limit=resolved(scheduler.vllm_config).options.max_partial_prefills,
    )


class SpyreScheduler(Scheduler):
    """The cap holds for one call: ``max_num_active_reqs`` (0.31 and later) is what vLLM compares admissions with."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        own = self.max_num_active_reqs
        self.max_num_active_reqs = _capped(self, own)
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.max_num_active_reqs = own


class SpyreAsyncScheduler(AsyncScheduler):
    """The same over vLLM's asynchronous scheduler."""

    def schedule(self, *args: Any, **kwargs: Any) -> SchedulerOutput:
        own = self.max_num_active_reqs
        self.max_num_active_reqs = _capped(self, own)
        try:
            return super().schedule(*args, **kwargs)
        finally:
            self.max_num_active_reqs = own
