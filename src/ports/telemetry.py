"""What a step tells those who watch."""
from __future__ import annotations

from typing import Any, Protocol

from .step import StepPlan


class Telemetry(Protocol):
    """Called once a step on the engine's thread; must cost microseconds."""

    def step(self, plan: StepPlan[Any]) -> None: ...

    def close(self) -> None: ...
