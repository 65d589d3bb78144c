"""What the environment says about the emulated card."""

from __future__ import annotations

from collections.abc import Mapping

import attrs

CARDS = "STEPSHAPE_SPYRE_CARDS"
"""Cards of this host; unset: 1."""
ROUNDING = "STEPSHAPE_SPYRE_ROUNDING"
"""``off``: float16 results keep float32 precision."""
FILL = "STEPSHAPE_SPYRE_FILL"
"""Byte that fresh memory is filled with, or ``none``; unset: 0xff, which is NaN in every float."""
THREADS = "OMP_NUM_THREADS"
"""Threads of the CPU's kernels; unset: 1, because two beside a busy process are some seventy times slower than one."""
MAX_CARDS = 64


class SwitchError(ValueError):
    """A value that is not understood; the message says what to use."""


@attrs.frozen
class Switches:
    """``fill`` None: fresh memory is left as it comes."""

    cards: int = 1
    rounding: bool = True
    fill: int | None = 0xFF
    pin_thread: bool = True
    """True: one thread, unless torch was told how many"""


def read_switches(environment: Mapping[str, str]) -> Switches:
    """Read the variables; unset and empty mean the default. Raises :class:`SwitchError`."""
    cards = environment.get(CARDS, "").strip() or "1"
    if not cards.isdecimal() or not 1 <= int(cards) <= MAX_CARDS:
        raise SwitchError(f"{CARDS}={cards!r} is no number of cards; use 1 to {MAX_CARDS}")
    rounding = environment.get(ROUNDING, "").strip() or "on"
    if rounding not in ("on", "off"):
        raise SwitchError(f"{ROUNDING}={rounding!r} is not understood; use on or off")
    fill = environment.get(FILL, "").strip() or "0xff"
    return Switches(
        cards=int(cards),
        rounding=rounding == "on",
        fill=None if fill == "none" else _byte(fill),
        pin_thread=not environment.get(THREADS, "").strip(),
    )


def _byte(text: str) -> int:
    try:
        byte = int(text, 0)
    except ValueError:
        byte = -1
    if not 0 <= byte <= 255:
        raise SwitchError(f"{FILL}={text!r} is no byte; use 0 to 255, 0x00 to 0xff, or none")
    return byte
