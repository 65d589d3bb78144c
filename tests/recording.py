"""The plugin's worker with a telemetry of its own: every plan, in order."""

from __future__ import annotations

from typing import Any

import attrs

from stepshape.adapters.vllm.tenstorrent.config import ResolvedConfig
from stepshape.domain.step_counts import StepCounts
from stepshape.plugins.tenstorrent.worker import Worker
from stepshape.ports.step import Phase, StepPlan
from stepshape.ports.telemetry import Telemetry

RECORDING_WORKER = f"{__name__}.RecordingWorker"


class PlanRecorder:
    """Implements ``Telemetry``; checks on each plan what no plan may break (field cases, invariants 1, 4, 5)."""

    def __init__(self, lanes: int) -> None:
        self.counts = StepCounts(lanes)
        self.plans: list[StepPlan[Any]] = []
        self.row_of: dict[str, int] = {}

    def step(self, plan: StepPlan[Any]) -> None:
        self.counts.add(plan)
        self.plans.append(attrs.evolve(plan, request_ids=list(plan.request_ids), starts=list(plan.starts)))
        for release in plan.released:
            assert self.row_of.pop(release.request_id) == release.row
        for admission in plan.admitted:
            assert plan.phase is Phase.PREFILL
            assert admission.row not in self.row_of.values()
            self.row_of[admission.request_id] = admission.row
        assert len(self.row_of) <= plan.capacity
        assert len(set(plan.rows)) == len(plan.rows)
        for request_id, row in zip(plan.request_ids, plan.rows, strict=True):
            assert self.row_of[request_id] == row, "a request moved"

    def close(self) -> None:
        """Nothing is held."""

    def phases(self) -> str:
        return "".join(plan.phase.value[0].upper() for plan in self.plans)

    def emitted(self, request_id: str) -> int:
        """Tokens that steps produced for the request, wanted or not."""
        total = 0
        for plan in self.plans:
            for i, scheduled in enumerate(plan.request_ids):
                if scheduled == request_id:
                    total += plan.emits[i] if plan.phase is Phase.PREFILL else 1
        return total


class RecordingWorker(Worker):
    def telemetry(self, config: ResolvedConfig) -> Telemetry:
        return PlanRecorder(config.topology.lanes)
