"""Which phase the next step runs: prefill or decode, never both.

A mesh replays one captured program a step, so all lanes share the phase (contract 4.2, 4.4, 5.3). Prefill goes
first, because later decode steps then run with fuller batches; a cadence keeps decodes moving while prompts
are pending: at most P prefill steps in a row while something decodes, then D decode steps.
"""
from __future__ import annotations

from collections.abc import Sequence

import attrs

from ..ports.lane import LaneSnapshot
from ..ports.step import Phase


@attrs.frozen(kw_only=True)
class Cadence:
    """Decode interleave. Defaults: two prefill steps, then one decode step."""

    enabled: bool = True
    prefill_steps: int = attrs.field(default=2, validator=attrs.validators.ge(1))
    decode_steps: int = attrs.field(default=1, validator=attrs.validators.ge(1))


@attrs.frozen
class PhaseChoice:
    phase: Phase
    why: str


_PROBE_LIMIT = 8


class PhasePolicy:
    """The state between steps: how many of each phase ran in a row, and whether prefill is worth a try.

    ``choose`` reads and does not write; the caller says with ``record`` what really ran.
    """

    def __init__(self, cadence: Cadence) -> None:
        self._cadence = cadence
        self._prefill_run = 0
        self._decode_run = 0
        self._pause = 0
        self._next_pause = 1

    def choose(self, lanes: Sequence[LaneSnapshot]) -> PhaseChoice:
        prefill_pending = any(lane.wants_prefill for lane in lanes)
        decoding = any(lane.decodes for lane in lanes)
        if not prefill_pending:
            return PhaseChoice(Phase.DECODE, "no prefill pending") if decoding else PhaseChoice(Phase.EMPTY, "idle")
        if not decoding:
            return PhaseChoice(Phase.PREFILL, "nothing decodes")
        if self._pause > 0:
            return PhaseChoice(Phase.DECODE, "the last prefill pass placed nothing")
        cadence = self._cadence
        if cadence.enabled and self._prefill_run >= cadence.prefill_steps and self._decode_run < cadence.decode_steps:
            return PhaseChoice(Phase.DECODE, "decode's turn in the cadence")
        return PhaseChoice(Phase.PREFILL, "prefill pending")

    def record(self, phase: Phase, *, prefill_pending: bool) -> None:
        """Count what ran, even if it scheduled nothing: a decode that moves no token still spends its turn,
        else the cadence would ask for it for ever. A decode taken with nothing pending spends nothing, else the
        next prompt would lose its first prefill step."""
        if phase is Phase.DECODE and self._pause > 0:
            self._pause -= 1
        if not prefill_pending:
            self._prefill_run = self._decode_run = 0
        elif phase is Phase.DECODE:
            self._decode_run += 1
            if self._decode_run >= self._cadence.decode_steps:
                self._prefill_run = self._decode_run = 0
        elif phase is Phase.PREFILL:
            self._prefill_run += 1
            self._decode_run = 0

    def prefill_placed_nothing(self) -> None:
        """A prefill pass came back empty while something decodes: KV pressure, or a grammar that compiles.

        Asking again at every step would schedule each step twice, so the next probes wait 1, 2, 4, then 8 decode
        steps, until :meth:`room_appeared`.
        """
        self._pause = self._next_pause
        self._next_pause = min(self._next_pause * 2, _PROBE_LIMIT)

    def room_appeared(self) -> None:
        """A row was freed or a prefill placed something: probing is worth it again."""
        self._pause = 0
        self._next_pause = 1
