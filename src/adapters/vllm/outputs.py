"""vLLM's step records, with what our side of the step adds as declared fields of a subclass.

A private attribute on someone else's object would survive only in one process; a field is pickled with the rest.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from vllm import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from ...ports.step import StepPlan


@dataclass
class PlannedSchedulerOutput(SchedulerOutput):
    """The lanes' outputs merged for the engine, with the plan for the runner."""

    plan: StepPlan[SamplingParams] | None = None
    lane_outputs: Sequence[SchedulerOutput] = ()


@dataclass
class PlannedRunnerOutput(ModelRunnerOutput):
    """A step's result, with the requests that it could not serve."""

    failed: dict[str, str] = field(default_factory=dict)
    """request id -> what went wrong, in one sentence; each ends with finish reason error"""
