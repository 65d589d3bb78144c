"""Where the lanes of a head, and the columns of an MLP, go when they are widened to the device's stick.

A head of ``orig`` lanes is stored in ``padded`` lanes, so that half of it is a whole number of sticks (spyre contract
2.10). Rotary embedding pairs lane i with lane i + half, so the first and the second half are padded each on their own;
a value head is not rotated and is padded at its end.
"""

from __future__ import annotations

from collections.abc import Iterable

import attrs

HEAD_MULTIPLE = 128
"""Lanes: two halves of one 64-lane stick each."""
STICK = 64
"""fp16 lanes in one 128-byte stick."""


@attrs.frozen
class Widening:
    """``orig`` lanes a head stored in ``padded`` lanes; equal where nothing is padded."""

    orig: int
    padded: int

    @property
    def needed(self) -> bool:
        return self.orig != self.padded

    def rotary_lanes(self) -> tuple[int, ...]:
        """Position of each original lane in a padded query or key head."""
        half, wide = self.orig // 2, self.padded // 2
        return (*range(half), *range(wide, wide + self.orig - half))

    def value_lanes(self) -> tuple[int, ...]:
        """Position of each original lane in a padded value head."""
        return tuple(range(self.orig))


def round_up(size: int, multiple: int) -> int:
    return -(-size // multiple) * multiple


def head_widening(head_size: int) -> Widening:
    """The storage of a head of ``head_size`` lanes. Raises ValueError on an odd size, which rotary cannot halve."""
    if head_size < 2 or head_size % 2:
        raise ValueError(
            f"a head of {head_size} lanes cannot be cut in two halves; serve a model with an even head size"
        )
    return Widening(head_size, round_up(head_size, HEAD_MULTIPLE))


def mlp_widening(intermediate_size: int, tensor_parallel_size: int = 1) -> Widening:
    """The storage of an MLP ``intermediate_size`` wide: whole sticks on every rank (contract 2.11)."""
    return Widening(intermediate_size, round_up(intermediate_size, STICK * tensor_parallel_size))


PADDED_ROTARY = ("default", "linear", "llama3", "yarn")
"""Kinds of rotary embedding whose frequencies are those of the real width in a padded head."""


def head_refusal(
    *, rotary_dim: int | None, partial_rotary_factor: float | None, widening: Widening, kinds: Iterable[str] = ()
) -> str | None:
    """Why heads of this model cannot be widened; None: they can, or need not. ``kinds``: the layers' ``rope_type``."""
    if not widening.needed:
        return None
    if rotary_dim is not None:
        return (
            f"heads of {widening.orig} lanes need padding to {widening.padded}, which does not keep a rope_dim of "
            f"{rotary_dim} in place; serve a model whose rotary embedding covers the whole head"
        )
    if partial_rotary_factor not in (None, 1.0):
        return (
            f"heads of {widening.orig} lanes need padding to {widening.padded}, which does not keep a "
            f"partial_rotary_factor of {partial_rotary_factor} in place; serve a model whose rotary embedding covers "
            "the whole head"
        )
    other = sorted(set(kinds) - set(PADDED_ROTARY))
    if other:
        return (
            f"heads of {widening.orig} lanes need padding to {widening.padded}, which does not keep the frequencies of "
            f"a rope_type of {' or '.join(other)}; serve a model with {', '.join(PADDED_ROTARY)}, or with heads of a "
            "multiple of 128 lanes"
        )
    return None
