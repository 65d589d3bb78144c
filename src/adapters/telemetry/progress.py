"""A bar for work in countable pieces, with the time it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[str], None]
"""One piece is done; the text names the next."""


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[Advance]:
    """A bar on standard error; where that is no terminal, a line at the start and at each quarter, so that a log stays
    a log. The estimate is the mean so far times the pieces left."""
    console = Console(stderr=True)
    if not console.is_terminal:
        yield _lines(console, title, total, unit)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(unit),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("{task.fields[piece]}"),
    )
    with Progress(*columns, console=console) as progress:
        task = progress.add_task(title, total=total, piece="")
        yield lambda piece: progress.update(task, advance=1, piece=piece)
        progress.update(task, piece="")


def _lines(console: Console, title: str, total: int, unit: str) -> Advance:
    started = time.monotonic()
    done = 0
    console.print(f"{title}: {total} {unit}", soft_wrap=True)

    def advance(piece: str) -> None:
        nonlocal done
        done += 1
        if done * 4 // total > (done - 1) * 4 // total:
            elapsed = time.monotonic() - started
            left = elapsed / done * (total - done)
            console.print(f"{title}: {done} of {total} {unit}, {elapsed:.0f} s, {left:.0f} s left", soft_wrap=True)

    return advance
