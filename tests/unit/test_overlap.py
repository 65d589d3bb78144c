"""Frames: read once, applied in order, drained by driving and not by waiting."""

from __future__ import annotations

import pytest

from stepshape.domain.overlap import FrameQueue
from stepshape.domain.reload import ReloadCause, reload_commands
from stepshape.ports.step import ReloadCommands


class Recorder:
    def __init__(self) -> None:
        self.events: list[str] = []
        self.read: set[str] = set()
        self.queue: FrameQueue[str] = FrameQueue(read=self._read, is_read=self.read.__contains__, apply=self._apply)

    def _read(self, frame: str) -> None:
        if frame not in self.read:
            self.events.append(f"read {frame}")
            self.read.add(frame)

    def _apply(self, frame: str) -> None:
        self.events.append(f"apply {frame}")


def test_drain_reads_and_applies_oldest_first() -> None:
    r = Recorder()
    r.queue.submitted("1")
    r.queue.submitted("2")
    r.queue.drain()
    assert r.events == ["read 1", "apply 1", "read 2", "apply 2"]
    assert len(r.queue) == 0


def test_a_frame_read_elsewhere_is_not_read_again() -> None:
    r = Recorder()
    r.queue.submitted("1")
    r.read.add("1")
    r.queue.drain()
    assert r.events == ["apply 1"]


def test_only_the_read_head_is_applied_without_waiting() -> None:
    r = Recorder()
    for frame in "123":
        r.queue.submitted(frame)
    r.read |= {"1", "3"}
    r.queue.apply_read()
    assert r.events == ["apply 1"]  # 3 is read, but 2 comes first
    assert len(r.queue) == 2


def test_a_frame_that_raises_is_not_left_to_be_read_back_again() -> None:
    class Broken(Recorder):
        def _read(self, frame: str) -> None:
            raise RuntimeError(frame)

    r = Broken()
    r.queue.submitted("1")
    with pytest.raises(RuntimeError):
        r.queue.drain()
    assert len(r.queue) == 0


def test_reload_commands_by_cause() -> None:
    assert reload_commands(None, rows_grown=False, device_sampling=True) == ReloadCommands()
    assert reload_commands(None, rows_grown=True, device_sampling=True) == ReloadCommands(page_table=True)
    for cause in ReloadCause:
        commands = reload_commands(cause, rows_grown=True, device_sampling=True)
        assert commands.inputs and not commands.page_table
        assert commands.reset_sampling_state is (cause is not ReloadCause.HOST_SAMPLED)
    assert reload_commands(ReloadCause.FIRST, rows_grown=False, device_sampling=False) == ReloadCommands(inputs=True)


@pytest.mark.parametrize("bad", [{"inputs": True, "page_table": True}, {"reset_sampling_state": True}])
def test_contradictory_commands_cannot_be_built(bad: dict[str, bool]) -> None:
    with pytest.raises(ValueError, match="reload"):
        ReloadCommands(**bad)
