"""Handles of the read-back protocol (contract 3.5): on the device, on the way, on the host."""
from __future__ import annotations

import torch

from .command_queue import EmulatedEvent
from .program import StepResult
from .rules import Rule, RuleBroken

HostOutput = torch.Tensor | tuple[torch.Tensor, torch.Tensor]


class DeviceOutput:
    """What a step left on the device. ``event`` passes when the step is over."""

    def __init__(self, event: EmulatedEvent[StepResult]) -> None:
        self.event = event

    def wait(self) -> HostOutput:
        """Blocks; raises what the step raised."""
        return _host(self.event.result())


class HostCopy:
    """An asynchronous copy to the host: to be used once ``event`` has been synchronized."""

    def __init__(self, event: EmulatedEvent[StepResult]) -> None:
        self.event = event

    def take(self) -> HostOutput:
        if not self.event.synchronized:
            raise RuleBroken(Rule.READ_BEFORE_EVENT, "process_decode_output_host came first")
        return _host(self.event.result())


def _host(result: StepResult) -> HostOutput:
    if result.tokens is not None and result.logits is not None:
        return result.tokens, result.logits
    if result.tokens is not None:
        return result.tokens
    if result.logits is None:
        raise AssertionError("a step returns tokens, logits or both")
    return result.logits
