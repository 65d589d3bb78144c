"""The table of what buckets made of a load, from the report a Spyre worker wrote (``STEPSHAPE_STEP_REPORT``)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.box import SIMPLE
from rich.table import Table


def bucket_table(report: Mapping[str, Any]) -> Table:
    """``report``: as :class:`stepshape.adapters.telemetry.bucket_log.BucketLog` writes it."""
    table = Table(title="What the card did", title_justify="left", box=SIMPLE, pad_edge=False)
    table.add_column("", style="bold")
    table.add_column("what")
    table.add_column("count", justify="right")
    device, warm_up = report["device"], report["warm_up"]
    bodies = sorted(report["body_rows"].items(), key=lambda entry: int(entry[0]))
    late = device["artifacts"] + device["eager_kernels"]
    sections: tuple[tuple[str, Mapping[str, int | float]], ...] = (
        ("steps by body", {f"{rows} rows": count for rows, count in bodies}),
        ("kernels a layer", report["kernels"]),
        ("padded over useful", {name.replace("_", " "): ratio for name, ratio in report["padded_over_useful"].items()}),
        ("warm-up", {"variants": warm_up["variants"], "seconds": warm_up["seconds"]}),
        ("compiles after it", {"graphs and kernels": late}),
        (
            "copies to the card",
            {"in all": device["host_to_device"], "most in a step": report["most_copies_in_a_step"]},
        ),
    )
    for name, counts in sections:
        title = name
        for what, count in counts.items():
            table.add_row(title, what, f"{count:,}")
            title = ""
        table.add_section()
    return table
