"""How long a step takes at least. Off by default: the emulator is as fast as the CPU lets it."""
from __future__ import annotations

import json
from typing import Any

import attrs

from ....ports.step import Phase

LATENCY_VARIABLE = "STEPSHAPE_TT_LATENCY"


class LatencyError(ValueError):
    """A latency table that cannot be read."""


def _milliseconds(_: Any, attribute: attrs.Attribute[float], value: float) -> None:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value < float("inf"):
        raise LatencyError(f"latency {attribute.name}={value!r} is not a time; give milliseconds >= 0")


@attrs.frozen(kw_only=True)
class LatencyModel:
    """Milliseconds: a fixed part a step, a part a prefilled token, a part an active decode row."""

    prefill_ms: float = attrs.field(default=0.0, validator=_milliseconds)
    prefill_token_ms: float = attrs.field(default=0.0, validator=_milliseconds)
    decode_ms: float = attrs.field(default=0.0, validator=_milliseconds)
    decode_row_ms: float = attrs.field(default=0.0, validator=_milliseconds)

    def seconds(self, phase: Phase, *, rows: int, tokens: int) -> float:
        """The least time of a step of ``rows`` active rows that computes ``tokens`` positions."""
        if phase is Phase.PREFILL:
            return (self.prefill_ms + self.prefill_token_ms * tokens) / 1000
        if phase is Phase.DECODE:
            return (self.decode_ms + self.decode_row_ms * rows) / 1000
        return 0.0


NO_LATENCY = LatencyModel()


def read_latency(text: str) -> LatencyModel:
    """A JSON object of :class:`LatencyModel`'s fields. Raises :class:`LatencyError`."""
    try:
        table = json.loads(text)
    except ValueError as error:
        raise LatencyError(f"the latency table is not JSON ({error}); write an object of milliseconds") from None
    names = [field.name for field in attrs.fields(LatencyModel)]
    if not isinstance(table, dict):
        raise LatencyError(f"the latency table is a {type(table).__name__}; write an object of {', '.join(names)}")
    unknown = sorted(set(table) - set(names))
    if unknown:
        raise LatencyError(f"latency key {unknown[0]!r} is unknown; use {', '.join(names)}")
    return LatencyModel(**table)
