"""Counts buckets and the device's own events while serving; at close logs the sums and, if a file is named, writes
them as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import structlog

from ...domain.attention_plan import Variant
from ...domain.bucket_counts import BucketCounts

log = structlog.get_logger(__name__)


class BucketLog:
    """``report``: the file to write at close (None: only the log line). ``events``: the device's running counts."""

    def __init__(self, counts: BucketCounts, report: Path | None, events: Callable[[], Mapping[str, int]]) -> None:
        self.counts = counts
        self._report = report
        self._events = events
        self._at_start: Mapping[str, int] = {}
        self._warm_up: dict[str, float] = {}

    def warmed_up(self, variants: int, seconds: float) -> None:
        """Warm-up is over: what the device counts from here on is serving's. The steps of warm-up are forgotten."""
        self._warm_up = {"variants": variants, "seconds": round(seconds, 2)}
        self._at_start = dict(self._events())

    def step(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        body: int,
        variants: Iterable[Variant],
        copies: int,
    ) -> None:
        self.counts.add(query_lens, context_lens, body, variants, copies)

    def events(self) -> dict[str, int]:
        """What the device counted since warm-up."""
        return {name: count - self._at_start.get(name, 0) for name, count in self._events().items()}

    def close(self) -> None:
        summary: dict[str, Any] = {**self.counts.summary(), "warm_up": self._warm_up, "device": self.events()}
        log.info("served", **summary)
        if self._report is not None:
            self._report.write_text(json.dumps(summary, indent=2, sort_keys=True) + "\n", encoding="utf-8")
