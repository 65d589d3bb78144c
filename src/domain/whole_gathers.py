"""Ladders moved off the sizes at which some gather would take as many rows as its source has.

Such a gather faults on the device (torch-spyre#4033, spyre contract 6, check 8). Which sizes those are depends on the
pool's pages, which only a launch knows; one more block or entry than needed costs next to nothing.
"""

from __future__ import annotations

import attrs

from .attention_plan import AttentionShapes, DecodeForm, FlatDecode
from .buckets import Ladder


def clear_of_whole_gathers(shapes: AttentionShapes, pages: int) -> AttentionShapes:
    """``shapes`` for a pool of ``pages`` pages a layer, the null page included."""
    blocks = shapes.blocks.avoiding({pages})
    shapes = attrs.evolve(shapes, blocks=blocks)
    if shapes.decode is not DecodeForm.FLAT:
        return shapes
    out: list[int] = []
    for size in shapes.entries.sizes:
        while _whole(shapes, size, pages) or (out and size <= out[-1]):
            size += 1
        out.append(size)
    return attrs.evolve(shapes, entries=Ladder(out))


def _whole(shapes: AttentionShapes, entries: int, pages: int) -> bool:
    """Whether a flat decode of ``entries`` gathers a whole source: pages, rows by owner, or groups by round."""
    if entries == pages:
        return True
    for rows in shapes.sequences.sizes:
        groups = shapes.groups(FlatDecode(rows, entries))
        if entries in (rows, groups * shapes.radix) or rows * shapes.radix == groups:
            return True
    return False
