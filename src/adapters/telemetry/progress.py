"""A bar for work in countable pieces, with the time it will still take."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

Advance = Callable[[str], None]
"""One piece is done; the text names the next."""


@contextmanager
def progress_bar(title: str, total: int, unit: str) -> Iterator[Advance]:
    """A bar on standard error. Where that is no terminal: the whole once, when it is done, so that a log stays a log.

    The estimate is the mean so far times the pieces left.
    """
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
    with Progress(*columns, console=Console(stderr=True), transient=False) as progress:
        task = progress.add_task(title, total=total, piece="")
        yield lambda piece: progress.update(task, advance=1, piece=piece)
        progress.update(task, piece="")
