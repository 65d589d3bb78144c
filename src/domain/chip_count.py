"""Whether the chips of a host have to be looked for, or can be told from its device nodes.

A node is a chip on PCIe; an N300 or a T3000 has further chips behind those, which ttnn alone knows of. Looking costs
seconds and locks the chips, so it is done where something depends on it.
"""

from __future__ import annotations

from .topology import TopologyError, parse_mesh


def chips_without_looking(nodes: int, mesh_device: str | None, visible: str | None) -> int | None:
    """How many chips to reckon with, from ``nodes`` device nodes, ``MESH_DEVICE`` and ``TT_VISIBLE_DEVICES``.

    None: it depends on chips that have no node. Whoever names the visible chips is believed that they are there:
    looking at the others might wait for a process that has them.
    """
    named = [piece.strip() for piece in (visible or "").split(",") if piece.strip()]
    if named:
        return max([nodes, *(int(piece) + 1 for piece in named if piece.isdecimal())])
    if nodes < 1 or not (mesh_device or "").strip():
        return None
    try:
        parse_mesh(mesh_device, nodes)
    except TopologyError:
        return None
    return nodes
