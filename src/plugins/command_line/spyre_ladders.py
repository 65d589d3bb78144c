"""``stepshape spyre ladders``: from what was served to the ladders that would have padded it least."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path

from ...domain.bucket_planner import padded_total, plan_ladder
from ...domain.buckets import Ladder
from ...domain.spyre_options import ENTRY_LADDER


def ladders(report: Path, entries: int, body: int, largest_body: int) -> int:
    """Print how to start the server with ladders planned from ``report``; 1 where it cannot be read or planned from."""
    try:
        summary = json.loads(report.read_text(encoding="utf-8"))
        measured = summary["measured"]
        rows = {int(length): int(count) for length, count in measured["body_rows"].items()}
        totals = {int(length): int(count) for length, count in measured["decode_entries"].items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as unreadable:
        print(
            f"stepshape: {report} is no report of a served load ({type(unreadable).__name__}: {unreadable}); name the "
            "file that the server wrote at its end",
            file=sys.stderr,
        )
        return 1
    if not rows:
        print(f"stepshape: {report} holds no step; serve something first", file=sys.stderr)
        return 1
    try:
        planned_body = plan_ladder(rows, body, top=largest_body)
        planned_entries = plan_ladder(totals, entries, top=max(totals)) if totals else None
    except ValueError as refused:
        print(f"stepshape: {refused}", file=sys.stderr)
        return 1
    sizes = ", ".join(map(str, planned_body.sizes))
    print(f"--compilation-config '{{\"compile_sizes\": [{sizes}]}}'  # {_padding(rows, planned_body)}")
    if planned_entries is not None:
        csv = ",".join(map(str, planned_entries.sizes))
        print(f"{ENTRY_LADDER}={csv}  # {_padding(totals, planned_entries)}")
    return 0


def _padding(histogram: Mapping[int, int], ladder: Ladder) -> str:
    needed = sum(length * count for length, count in histogram.items())
    return f"{padded_total(histogram, ladder) / needed:.3f} computed for 1 needed"
