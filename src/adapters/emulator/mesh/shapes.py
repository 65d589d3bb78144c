"""Which shapes were warmed up: the device has a program, and perhaps a trace, for those and no others."""
from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from .rules import Rule, RuleBroken

SHORTEST_PREFILL = 128


def prefill_lengths(max_seq_len: int) -> tuple[int, ...]:
    """The ladder of padded prefill lengths: powers of two from 128, then ``max_seq_len`` rounded up to 128."""
    longest = max(-(-max_seq_len // SHORTEST_PREFILL) * SHORTEST_PREFILL, SHORTEST_PREFILL)
    ladder = []
    length = SHORTEST_PREFILL
    while length < longest:
        ladder.append(length)
        length *= 2
    return (*ladder, longest)


def padded_length(tokens: int, ladder: tuple[int, ...]) -> int:
    """The shortest length of ``ladder`` that holds ``tokens``. Raises :class:`RuleBroken` if none does."""
    for length in ladder:
        if tokens <= length:
            return length
    raise RuleBroken(Rule.UNSEEN_SHAPE, f"a prefill of {tokens} tokens, the longest program has {ladder[-1]}")


class Shape(NamedTuple):
    """One program. A sampled one covers tokens, logits, or both; one without sampling returns logits."""

    phase: str
    size: tuple[int, ...]
    """prefill: (padded length,); decode: (B, W)"""
    sampled: bool
    traced: bool

    def __str__(self) -> str:
        how = ("traced" if self.traced else "untraced") + (", sampled on the device" if self.sampled else "")
        return f"{self.phase} {'x'.join(str(n) for n in self.size)} ({how})"


class ProgramCache:
    """Remembers compiled shapes. Once a trace exists, compiling a new one is refused: it would allocate
    buffers under the trace."""

    def __init__(self) -> None:
        self._warm: set[Shape] = set()
        self._frozen = False
        self._width: int | None = None

    def warm_up(self, shapes: Iterable[Shape]) -> None:
        """Compile ``shapes``, or capture their traces where they are traced ones. A program that samples on
        the device brings the one that returns logits."""
        for shape in shapes:
            if self._frozen and shape._replace(traced=False) not in self._warm:
                raise RuleBroken(Rule.UNSEEN_SHAPE, f"warm-up compiles {shape} after it has captured a trace")
            self._warm.add(shape)
            self._warm.add(shape._replace(sampled=False))
            # What tt-metal prefills and decodes with must read one table width (8.27).
            if shape.phase == "decode":
                self._width = shape.size[1]
        self._frozen = self._frozen or any(shape.traced for shape in self._warm)

    def require(self, shape: Shape, width: int) -> None:
        """Raise :class:`RuleBroken` if ``shape``, or a page table of ``width`` blocks, is unknown and traces
        exist; else it is compiled now."""
        if self._frozen and self._width is not None and width != self._width:
            raise RuleBroken(Rule.UNSEEN_SHAPE, f"a page table of {width} blocks a row; warmed up: {self._width}")
        if shape in self._warm:
            return
        if self._frozen:
            raise RuleBroken(Rule.UNSEEN_SHAPE, f"{shape}; warmed up: {self._summary(shape.phase)}")
        self._warm.add(shape)

    def _summary(self, phase: str) -> str:
        same = sorted(str(shape) for shape in self._warm if shape.phase == phase)
        return "; ".join(same[:6]) + ("; ..." if len(same) > 6 else "") if same else f"no {phase} at all"
