"""The chips of a machine in equal groups: how a mesh is cut, in which order the pieces count, which one a rank gets.

Contract 7.5, 7.6 and 8.45; field cases 11 and 12.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs


class DeviceGroupError(ValueError):
    """The chips cannot be grouped, or a rank cannot have the group it asks for."""


@attrs.frozen
class DeviceGroup:
    """The chips of one piece of the machine's mesh."""

    ids: tuple[int, ...]
    """tt-metal's chip ids, row-major"""
    shape: tuple[int, int]
    """(rows, columns)"""

    @property
    def visible(self) -> str:
        """The group as ``TT_VISIBLE_DEVICES`` has it."""
        return ",".join(map(str, self.ids))


def piece_shape(mesh: tuple[int, int], count: int) -> tuple[int, int]:
    """The shape of each of ``count`` equal pieces of ``mesh``: whole columns where they divide, else whole rows.

    Raises :class:`DeviceGroupError` where neither does.
    """
    rows, columns = mesh
    if count >= 1 and columns % count == 0:
        return rows, columns // count
    if count >= 1 and rows % count == 0:
        return rows // count, columns
    raise DeviceGroupError(
        f"a {rows}x{columns} mesh has no {count} equal pieces of whole rows or columns; use a divisor of {columns} or "
        f"{rows}"
    )


_GALAXY_QUARTERS = (0, 2, 3, 1)


def group_order(cluster: str, mesh: tuple[int, int], count: int) -> tuple[int, ...]:
    """In which order the pieces of ``mesh`` are handed to ranks.

    The quarters of a Wormhole Galaxy that was opened as 4x8 lie in a ring: taken as they come, neighbours in rank are
    not neighbours in the machine (contract 8.45).
    """
    if cluster == "GALAXY" and mesh == (4, 8) and count == 4:
        return _GALAXY_QUARTERS
    return tuple(range(count))


def check_groups(groups: Sequence[DeviceGroup], count: int) -> None:
    """Raise :class:`DeviceGroupError` unless these are ``count`` groups with chips, no chip in two of them."""
    if len(groups) != count:
        raise DeviceGroupError(f"{count} groups of chips were asked for and {len(groups)} found; check MESH_DEVICE")
    seen: set[int] = set()
    for number, group in enumerate(groups):
        if not group.ids:
            raise DeviceGroupError(f"group {number} has no chips; check that the whole machine is visible")
        twice = seen.intersection(group.ids)
        if twice:
            raise DeviceGroupError(f"chip {min(twice)} is in two groups; check that the whole machine is visible")
        seen.update(group.ids)


def bind_rank(groups: Sequence[DeviceGroup], rank: int | None, assigned: Sequence[str]) -> str | None:
    """``TT_VISIBLE_DEVICES`` for one engine; None: leave what it inherited.

    ``groups``: what discovery found; empty: nothing was discovered. ``rank``: the local data-parallel rank.
    ``assigned``: what vLLM assigned, one string a device; empty: nothing. Raises :class:`DeviceGroupError` where they
    contradict each other, before any chip is opened.
    """
    wanted = ",".join(piece.strip() for piece in assigned)
    if not groups:
        return wanted or None
    if rank is None or not 0 <= rank < len(groups):
        raise DeviceGroupError(
            f"rank {rank} has no group among the {len(groups)} discovered; use as many ranks as groups"
        )
    group = groups[rank].visible
    if wanted and wanted != group:
        raise DeviceGroupError(
            f"--device-ids {wanted} is not the group of rank {rank}, which has the chips {group}; leave --device-ids "
            "out, or name exactly these"
        )
    return group
