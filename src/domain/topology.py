"""Which mesh is opened, and how ``--data-parallel-size`` becomes lanes (tenstorrent contract 1.5 and 7.1)."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence

import attrs

PRESETS: Mapping[str, tuple[int, int]] = {
    "N150": (1, 1),
    "P100": (1, 1),
    "P150": (1, 1),
    "P150x2": (1, 2),
    "N300": (1, 2),
    "P300": (1, 2),
    "N150x4": (1, 4),
    "P150x4": (1, 4),
    "P300x2": (1, 4),
    "T3K": (1, 8),
    "P150x8": (1, 8),
    "TG": (8, 4),
    "BH-Galaxy": (8, 4),
}
"""``MESH_DEVICE`` names to (rows, columns), as the worker reads them (contract 7.1)."""


class TopologyError(ValueError):
    """The mesh or the lanes that were asked for cannot be had."""


@attrs.frozen(kw_only=True)
class Topology:
    """The mesh of one engine and the lanes it is split into. A single engine is one lane."""

    mesh: tuple[int, int]
    """(rows, columns) of chips"""
    lanes: int
    rows_per_lane: int
    why: str
    """one phrase: where the lane count comes from"""

    @property
    def num_devices(self) -> int:
        return self.mesh[0] * self.mesh[1]

    @property
    def devices_per_lane(self) -> int:
        """Chips a lane has; at least 1 (contract 3.2 divides with a floor)."""
        return max(1, self.num_devices // self.lanes)

    @property
    def capacity(self) -> int:
        """Rows of all lanes: the ``max_num_seqs`` of the folded engine."""
        return self.lanes * self.rows_per_lane

    def describe(self) -> str:
        """The topology's piece of the start-up line."""
        rows = _count(self.rows_per_lane, "row")
        shape = _count(self.lanes, "lane") + (f" of {rows}" if self.lanes > 1 else f", {rows}")
        return f"{self.mesh[0]}x{self.mesh[1]} mesh, {shape} ({self.why})"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _article(number: int) -> str:
    return "an" if str(number).startswith("8") or number in (11, 18) else "a"


def parse_mesh(text: str | None, available: int) -> tuple[int, int]:
    """Return (rows, columns) for ``MESH_DEVICE``: a preset's name, "(r,c)" or "[r,c]". Unset: ``(1, n)``.

    ``available`` counts the chips this process may see. Raises :class:`TopologyError` for an unknown name and for a
    mesh larger than what is there. A smaller mesh is opened as asked.
    """
    if available < 1:
        raise TopologyError(
            "no Tenstorrent chip is visible to this process; check TT_VISIBLE_DEVICES, or set "
            "STEPSHAPE_TT_DEVICE=emulated"
        )
    if text is None or not text.strip():
        return (1, available)
    name = text.strip()
    shape = PRESETS.get(name) or _literal(name)
    if shape is None:
        raise TopologyError(
            f"MESH_DEVICE={name!r} is no mesh; use one of {', '.join(PRESETS)}, or a tuple such as (1,4)"
        )
    wanted = shape[0] * shape[1]
    if wanted > available:
        there = f"{available} is there" if available == 1 else f"{available} are there"
        raise TopologyError(
            f"MESH_DEVICE={name} wants {_article(shape[0])} {shape[0]}x{shape[1]} mesh of {_count(wanted, 'chip')} and "
            f"{there}; name a mesh of at most {_count(available, 'chip')}"
        )
    return shape


def _literal(text: str) -> tuple[int, int] | None:
    if text[:1] not in "([":
        return None
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError, MemoryError, RecursionError):
        return None
    if (
        isinstance(value, (tuple, list))
        and len(value) == 2
        and all(isinstance(side, int) and not isinstance(side, bool) and side >= 1 for side in value)
    ):
        return (int(value[0]), int(value[1]))
    return None


def visible_devices(text: str | None, present: int) -> int:
    """Count the chips that ``TT_VISIBLE_DEVICES`` (comma separated; unset or blank: all) leaves of ``present``.

    Raises :class:`TopologyError` for an id that is no whole number, is named twice, or is not there.
    """
    if text is None or not text.strip():
        return present
    ids: list[int] = []
    for part in text.split(","):
        piece = part.strip()
        if not piece.isdecimal():
            raise TopologyError(f"TT_VISIBLE_DEVICES={text!r} holds {piece!r}; use whole numbers between commas")
        ids.append(int(piece))
    if len(set(ids)) != len(ids):
        raise TopologyError(f"TT_VISIBLE_DEVICES={text!r} names a chip twice; name each chip once")
    missing = sorted(number for number in ids if number >= present)
    if missing:
        raise TopologyError(
            f"TT_VISIBLE_DEVICES={text!r} names chip {missing[0]} and there are {present}; use ids from 0 to "
            f"{present - 1}"
        )
    return len(ids)


def allowed_lanes(declared: Sequence[int], mesh: tuple[int, int]) -> tuple[int, ...]:
    """Lane counts a model may have on ``mesh``: the declared ones that divide its columns (a lane is whole columns).

    Empty where the model declares none.
    """
    return tuple(sorted({count for count in declared if count >= 1 and mesh[1] % count == 0}))


def fold(
    *,
    mesh: tuple[int, int],
    data_parallel_size: int,
    max_num_seqs: int,
    declared_lanes: Sequence[int],
    model: str,
    folded: Topology | None = None,
) -> Topology:
    """Turn ``data_parallel_size`` into lanes of ``max_num_seqs`` rows each (contract 1.5).

    ``folded`` is the result of an earlier call on the same configuration, which has since ``data_parallel_size == 1``
    and ``max_num_seqs == folded.capacity``: it is returned unchanged, so that folding twice does not multiply rows
    (the hook runs again in the engine process). A caller that raises either number afterwards starts afresh.

    Raises :class:`TopologyError` if the count is not a lane count of the model on this mesh, or if the model has no
    lanes.
    """
    if folded is not None and data_parallel_size == 1 and max_num_seqs == folded.capacity and mesh == folded.mesh:
        return folded
    if data_parallel_size == 1:
        return Topology(mesh=mesh, lanes=1, rows_per_lane=max_num_seqs, why="data_parallel_size=1")
    allowed = allowed_lanes(declared_lanes, mesh)
    if not declared_lanes:
        raise TopologyError(
            f"data_parallel_size={data_parallel_size} needs one engine a rank, and {model} declares no lanes "
            "that would replace them; ranks are not supported yet, use --data-parallel-size 1"
        )
    if data_parallel_size not in allowed:
        choices = ", ".join(map(str, allowed)) or "1"
        raise TopologyError(
            f"data_parallel_size={data_parallel_size} is not a lane count of {model} on {_article(mesh[0])} "
            f"{mesh[0]}x{mesh[1]} mesh ({choices}); use one of those"
        )
    return Topology(
        mesh=mesh,
        lanes=data_parallel_size,
        rows_per_lane=max_num_seqs,
        why=f"data_parallel_size={data_parallel_size} folded: {model} runs its lanes in one engine",
    )
