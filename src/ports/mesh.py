"""The device as the host sees it: a mesh of chips that is opened, watched by events, and closed."""
from __future__ import annotations

from typing import Any, Protocol


class Event(Protocol):
    """A point in the device's queue. ``synchronize`` returns once all work before it is done, or raises
    what that work raised. Calling it twice is allowed."""

    def synchronize(self) -> None: ...

    def done(self) -> bool:
        """True if ``synchronize`` would return (or raise) without waiting."""
        ...


class Mesh(Protocol):
    """An opened mesh. One owner opens it and closes it; closing twice is allowed."""

    @property
    def shape(self) -> tuple[int, int]:
        """(rows, columns)"""
        ...

    @property
    def num_devices(self) -> int: ...

    @property
    def handle(self) -> Any:
        """What a model class is given as ``mesh_device``: the backend's own object."""
        ...

    def synchronize(self, event: Any) -> None:
        """Wait for a backend event that a model returned (``ttnn.event_synchronize``)."""
        ...

    def event_done(self, event: Any) -> bool:
        """True if the backend event is known to have passed; False if it has not or cannot be told."""
        ...

    def close(self) -> None: ...
