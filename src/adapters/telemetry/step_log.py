"""Counts every step; at shutdown logs the sums and, where a file is named, writes them as JSON."""
from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import structlog

from ...domain.step_counts import StepCounts
from ...ports.step import StepPlan

log = structlog.get_logger(__name__)


class StepLog:
    """Implements :class:`stepshape.ports.telemetry.Telemetry`.

    ``report`` is the file to write at close (None: only the log line); ``counters`` adds the device's own counts.
    """

    def __init__(
        self, *, lanes: int, report: Path | None, counters: Callable[[], Mapping[str, int]] | None = None
    ) -> None:
        self.counts = StepCounts(lanes)
        self._report = report
        self._counters = counters

    def step(self, plan: StepPlan[Any]) -> None:
        self.counts.add(plan)

    def close(self) -> None:
        summary = self.counts.summary()
        if self._counters is not None:
            summary["device"] = dict(self._counters())
        log.info("served", **summary)
        if self._report is not None:
            try:
                self._report.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")
            except OSError as error:
                # The mesh is still to be closed; a report that cannot be written must not stand in the way.
                log.error("report_not_written", file=str(self._report), why=str(error))
