"""``stepshape model``: conversions, with a progress bar a tensor."""

from __future__ import annotations

import sys
import time
from pathlib import Path

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from ...adapters.checkpoints.errors import CheckpointError
from ...adapters.checkpoints.smollm2 import convert, packaged_gguf


def smollm2(folder: Path) -> int:
    """Convert SmolLM2-135M-Instruct to ``folder``; return the exit status."""
    start = time.monotonic()
    bar = Progress(
        TextColumn("converting"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("[dim]{task.description}"),
        console=Console(stderr=True),
    )
    try:
        with bar:
            task = bar.add_task("", total=None, visible=False)

            def progress(what: str, done: int, total: int) -> None:
                bar.update(task, description=what, completed=done, total=total, visible=True)

            made = convert(packaged_gguf(), folder, progress)
    except CheckpointError as refusal:
        print(f"stepshape: {refusal}", file=sys.stderr)
        return 1
    if made:
        print(f"{folder} holds SmolLM2-135M-Instruct in float32, converted in {time.monotonic() - start:.0f} s")
    else:
        print(f"{folder} holds SmolLM2-135M-Instruct already")
    return 0
