"""Readback as a small state machine, and when an earlier frame may stay in flight (choice 7).

A frame is one submitted step. It is submitted, then read (its values are on the host), then applied (the
host's buffers know its tokens). Reading may happen on any thread and only once; applying belongs to the engine's
thread. Draining a queue of frames drives them to applied, oldest first: it never waits for someone else to do so,
because the engine schedules step N+1 before it asks for step N (contract 8.20).
"""
from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

import attrs

from ..ports.step import Phase
from .reload import ReloadCause


@attrs.frozen
class OverlapChoice:
    keep: bool
    why: str


KEPT = OverlapChoice(True, "steady decode")


def overlap(
    phase: Phase, cause: ReloadCause | None, *, asynchronous: bool, prefill_may_overlap: bool
) -> OverlapChoice:
    """Whether frames that are still in flight may stay there while this step is built.

    A decode that reads its inputs again needs every token the host does not know yet. A prefill needs none, since a
    request is resumed only after its last token came back; it waits only where the model reads prefills at once.
    """
    if not asynchronous:
        return OverlapChoice(False, "async scheduling is off")
    if phase is Phase.PREFILL:
        if prefill_may_overlap:
            return OverlapChoice(True, "a prefill needs no token from before")
        return OverlapChoice(False, "the model reads prefills at once")
    if cause is not None:
        return OverlapChoice(False, cause.value)
    return KEPT


F = TypeVar("F")


class FrameQueue(Generic[F]):
    """Frames in submission order. ``read`` and ``apply`` are what a frame's owner does with it; ``is_read`` asks."""

    def __init__(self, read: Callable[[F], object], is_read: Callable[[F], bool], apply: Callable[[F], None]) -> None:
        self._read = read
        self._is_read = is_read
        self._apply = apply
        self._frames: deque[F] = deque()

    def __len__(self) -> int:
        return len(self._frames)

    def submitted(self, frame: F) -> None:
        self._frames.append(frame)

    def apply_read(self) -> None:
        """Apply the frames at the head that have been read already. Never waits."""
        while self._frames and self._is_read(self._frames[0]):
            self._apply(self._frames.popleft())

    def drain(self) -> None:
        """Read and apply everything, oldest first."""
        while self._frames:
            frame = self._frames.popleft()
            self._read(frame)
            self._apply(frame)
