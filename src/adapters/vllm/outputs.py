"""vLLM's step records, with what our side of the step adds as declared fields of a subclass.

A private attribute on someone else's object would survive only in one process; a field is pickled with the rest.
"""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import attrs
from vllm import SamplingParams
from vllm.v1.core.sched.output import SchedulerOutput
from vllm.v1.outputs import ModelRunnerOutput

from ...ports.step import StepPlan


@dataclass
class PlannedSchedulerOutput(SchedulerOutput):
    """The lanes' outputs merged for the engine, with the plan for the runner."""

    plan: StepPlan[SamplingParams] | None = None
    lane_outputs: Sequence[SchedulerOutput] = ()


@attrs.frozen
class Failure:
    """Why a request got no token."""

    why: str
    """a sentence for its client"""
    asked_for: bool = False
    """the request itself made it impossible (HTTP 400), not the device or a processor (500)"""


NOTHING_LEFT = Failure(
    "every token is masked out: allowed_token_ids, bad_words, logit_bias and the structured output asked for leave "
    "nothing to choose; ask for what can be met together",
    asked_for=True,
)


@dataclass
class PlannedRunnerOutput(ModelRunnerOutput):
    """A step's result, with the requests that it could not serve."""

    failed: dict[str, Failure] = field(default_factory=dict)
    """by request id; each ends with finish reason error, and its client is told why"""
