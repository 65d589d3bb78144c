"""What happened, counted: the table that ``make demo`` prints and the line logged at shutdown."""
from __future__ import annotations

from collections import Counter
from typing import Any

from ..ports.step import Phase, StepPlan


class StepCounts:
    """Sums over the plans of one engine. Reading it is free of side effects."""

    def __init__(self, lanes: int) -> None:
        self.steps: Counter[str] = Counter()
        """by phase"""
        self.phase_reasons: Counter[str] = Counter()
        """"phase: why" """
        self.tokens_by_lane = [0] * lanes
        """tokens sampled"""
        self.prefill_tokens = 0
        self.rows: Counter[str] = Counter()
        """rows sampled, by "device" or "host" """
        self.host_reasons: Counter[str] = Counter()
        self.overlap: Counter[str] = Counter()
        """decode steps: "kept: why" or "drained: why" """
        self.admitted = 0
        self.resumed = 0
        self._by_lane: list[int] = [0] * lanes

    def add(self, plan: StepPlan[Any]) -> None:
        self.steps[plan.phase.value] += 1
        if plan.phase is Phase.EMPTY:
            return
        self.phase_reasons[f"{plan.phase.value}: {plan.why}"] += 1
        path = plan.path
        if path.num_device:
            self.rows["device"] += path.num_device
        if path.host:
            self.rows["host"] += len(path.host)
            for reason, count in path.reasons.items():
                self.host_reasons[reason.value] += count
        if plan.phase is Phase.DECODE:
            self.overlap[f"{'kept' if plan.keep_overlap else 'drained'}: {plan.overlap_why}"] += 1
            if not plan.same_rows:
                by_lane = self._by_lane = [0] * len(self.tokens_by_lane)
                for row in plan.rows:
                    by_lane[row // plan.rows_per_lane] += 1
            for lane, count in enumerate(self._by_lane):
                self.tokens_by_lane[lane] += count
        else:
            for row, emit in zip(plan.rows, plan.emits, strict=True):
                self.tokens_by_lane[row // plan.rows_per_lane] += emit
            self.prefill_tokens += sum(plan.ends) - sum(plan.starts)
            self.admitted += len(plan.admitted)
            self.resumed += sum(a.resumed for a in plan.admitted)

    def summary(self) -> dict[str, Any]:
        """JSON-able."""
        return {
            "steps": dict(self.steps),
            "phase_reasons": dict(self.phase_reasons),
            "tokens_by_lane": list(self.tokens_by_lane),
            "prefill_tokens": self.prefill_tokens,
            "rows_sampled": dict(self.rows),
            "host_reasons": dict(self.host_reasons),
            "overlap": dict(self.overlap),
            "admitted": self.admitted,
            "resumed": self.resumed,
        }
