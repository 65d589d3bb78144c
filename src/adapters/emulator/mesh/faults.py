"""Faults to inject, said beforehand: at which step, and what goes wrong there."""
from __future__ import annotations

import enum
import json
from collections.abc import Iterable
from typing import Any

import attrs

from ....ports.step import Phase

FAULTS_VARIABLE = "STEPSHAPE_TT_FAULTS"


class FaultError(ValueError):
    """A list of faults that cannot be read."""


class InjectedFaultError(RuntimeError):
    """What an injected readback error raises from the step's event."""


class FaultKind(enum.Enum):
    READBACK_ERROR = "readback_error"
    """the step runs; waiting for it raises"""
    HANG = "hang"
    """the queue stands still for ``seconds`` before the step; closing the mesh ends it"""
    SLOW = "slow"
    """the step takes at least ``seconds``"""


@attrs.frozen(kw_only=True)
class Fault:
    """``step`` counts from 1: steps of ``phase``, or steps of either phase where it is None."""

    kind: FaultKind
    step: int
    phase: Phase | None = None
    seconds: float = 0.0

    def __attrs_post_init__(self) -> None:
        if isinstance(self.step, bool) or not isinstance(self.step, int) or self.step < 1:
            raise FaultError(f"fault step {self.step!r} is not a step number; count from 1")
        if self.kind is FaultKind.READBACK_ERROR:
            return
        if isinstance(self.seconds, bool) or not isinstance(self.seconds, (int, float)) or self.seconds <= 0:
            raise FaultError(f"fault {self.kind.value} has seconds={self.seconds!r}; give a time > 0")


@attrs.define
class FaultClock:
    """Counts steps and says which faults the next one meets."""

    faults: tuple[Fault, ...]
    _steps: dict[Phase, int] = attrs.field(factory=dict, init=False)

    def next(self, phase: Phase) -> tuple[Fault, ...]:
        """The faults of the step that begins now."""
        self._steps[phase] = self._steps.get(phase, 0) + 1
        if not self.faults:
            return ()
        total = sum(self._steps.values())
        return tuple(
            fault
            for fault in self.faults
            if (fault.phase is None and fault.step == total)
            or (fault.phase is phase and fault.step == self._steps[phase])
        )


def read_faults(text: str) -> tuple[Fault, ...]:
    """A JSON list of objects with ``kind``, ``step`` and, as needed, ``phase`` and ``seconds``.

    Example: ``[{"kind": "readback_error", "step": 5, "phase": "decode"}]``. Raises :class:`FaultError`.
    """
    try:
        entries = json.loads(text)
    except ValueError as error:
        raise FaultError(f"the faults are not JSON ({error}); write a list of objects") from None
    if not isinstance(entries, list):
        raise FaultError(f"the faults are a {type(entries).__name__}; write a list of objects")
    return tuple(_faults(entries))


def _faults(entries: Iterable[Any]) -> Iterable[Fault]:
    for index, entry in enumerate(entries):
        if not isinstance(entry, dict):
            raise FaultError(f"fault {index} is a {type(entry).__name__}; write an object with kind and step")
        unknown = sorted(set(entry) - {"kind", "step", "phase", "seconds"})
        if unknown:
            raise FaultError(f"fault {index} has the unknown key {unknown[0]!r}; use kind, step, phase, seconds")
        kinds = {kind.value: kind for kind in FaultKind}
        if entry.get("kind") not in kinds:
            raise FaultError(f"fault {index} has kind {entry.get('kind')!r}; use one of {', '.join(kinds)}")
        phases: dict[str | None, Phase | None] = {"prefill": Phase.PREFILL, "decode": Phase.DECODE, None: None}
        if entry.get("phase") not in phases:
            raise FaultError(f"fault {index} has phase {entry.get('phase')!r}; use prefill or decode, or leave it out")
        if "step" not in entry:
            raise FaultError(f"fault {index} has no step; say at which step it happens, counted from 1")
        yield Fault(
            kind=kinds[entry["kind"]],
            step=entry["step"],
            phase=phases[entry.get("phase")],
            seconds=entry.get("seconds", 0.0),
        )
