"""The table of what a server did, from the report its worker wrote (``STEPSHAPE_STEP_REPORT``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.table import Table


def step_table(report: Mapping[str, Any]) -> Table:
    """``report``: as :class:`stepshape.domain.step_counts.StepCounts` sums it up."""
    table = Table(title="What the mesh did", title_justify="left", box=SIMPLE, pad_edge=False)
    table.add_column("", style="bold")
    table.add_column("what")
    table.add_column("count", justify="right")
    lanes = {f"lane {lane}": count for lane, count in enumerate(report["tokens_by_lane"])}
    sampled = {f"on the {where}": count for where, count in report["rows_sampled"].items()}
    sampled |= {f"on the host for: {why}": count for why, count in report["host_reasons"].items()}
    sections: tuple[tuple[str, Mapping[str, int]], ...] = (
        ("steps by phase", report["steps"]),
        ("and why", report["phase_reasons"]),
        ("tokens by lane", lanes),
        ("tokens sampled", sampled),
        ("overlap of decodes", report["overlap"]),
        ("requests", {"admitted": report["admitted"], "resumed after preemption": report["resumed"]}),
        ("prompt tokens", {"computed": report["prefill_tokens"]}),
    )
    for name, counts in sections:
        title = name
        for what, count in counts.items():
            table.add_row(title, what, f"{count:,}")
            title = ""
        table.add_section()
    return table
