"""How many chips a real mesh may have on this host."""

from __future__ import annotations

import os

from ...domain.chip_count import chips_without_looking
from ...domain.topology import TopologyError
from .entrypoints import present_chips

FOUND = "STEPSHAPE_TT_CHIPS"
"""What the first process of a launch found, for those it starts: once one of them has opened the mesh, the chips are
locked and nobody can count them."""


def count_chips() -> int:
    """Count them: by the device nodes where those decide, else by asking ttnn in a child process, once a launch.

    Raises ``TopologyError`` where ttnn cannot say.
    """
    certain = chips_without_looking(
        present_chips(), os.environ.get("MESH_DEVICE"), os.environ.get("TT_VISIBLE_DEVICES")
    )
    if certain is not None:
        return certain
    found = os.environ.get(FOUND, "")
    if not found.isdecimal():
        from ...adapters.ttnn.discovery import DiscoveryError, look_at_machine

        try:
            found = str(look_at_machine().chips)
        except DiscoveryError as error:
            raise TopologyError(str(error)) from error
        os.environ[FOUND] = found
    return int(found)
