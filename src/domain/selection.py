"""Which device this process serves on: nothing is selected by accident, and a wrong wish is said, not passed over."""

from __future__ import annotations

import enum
from collections.abc import Mapping

import attrs

TT_DEVICE = "STEPSHAPE_TT_DEVICE"
"""``emulated`` selects the emulated Tenstorrent mesh; unset: a real one where there is one."""
SPYRE_DEVICE = "STEPSHAPE_SPYRE_DEVICE"
"""``emulated`` selects the emulated Spyre card."""


class Device(enum.Enum):
    EMULATED = "emulated"
    REAL = "real"


@attrs.frozen
class Selection:
    """``device`` None: the platform does not apply. ``problem``: a sentence; the start is refused with it.

    A problem still selects the platform: vLLM logs what a platform plugin raises and goes on without it, and the user
    would then read "Failed to infer device type" in place of the cause.
    """

    device: Device | None
    problem: str | None = None


def select_mesh(environment: Mapping[str, str], real_mesh: bool) -> Selection:
    """Select from the environment. ``real_mesh``: ttnn can be imported and this host has a Tenstorrent chip."""
    wish = environment.get(TT_DEVICE, "").strip()
    if wish and wish != Device.EMULATED.value:
        return Selection(
            Device.EMULATED,
            f"{TT_DEVICE}={wish!r} is no device; use {Device.EMULATED.value}, or leave it unset for a real mesh",
        )
    other = environment.get(SPYRE_DEVICE, "").strip()
    if not wish:
        return Selection(Device.REAL if real_mesh and not other else None)
    if other:
        return Selection(
            Device.EMULATED,
            f"{TT_DEVICE}={wish} and {SPYRE_DEVICE}={other} select two devices for one process; leave one of them "
            "unset",
        )
    return Selection(Device.EMULATED)


def select_spyre(environment: Mapping[str, str], real_card: bool) -> Selection:
    """Select from the environment. ``real_card``: torch-spyre can be imported and this host has a Spyre card.

    Where both emulated devices are asked for the mesh's plugin says so, and this one stays away: two platforms that
    both applied would be vLLM's error, not the user's sentence.
    """
    wish = environment.get(SPYRE_DEVICE, "").strip()
    other = environment.get(TT_DEVICE, "").strip()
    if other:
        return Selection(None)
    if wish and wish != Device.EMULATED.value:
        return Selection(
            Device.EMULATED,
            f"{SPYRE_DEVICE}={wish!r} is no device; use {Device.EMULATED.value}, or leave it unset for a real card",
        )
    if not wish:
        return Selection(Device.REAL if real_card else None)
    return Selection(Device.EMULATED)
