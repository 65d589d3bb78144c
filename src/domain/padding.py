"""Cells computed beside cells needed: what bucketing costs."""

from __future__ import annotations

import attrs

from .attention_plan import AttentionPlan, FlatDecode


@attrs.frozen
class Cells:
    """``useful`` cells were needed and ``padded`` (no fewer) computed, in whatever unit the two share."""

    useful: int = 0
    padded: int = 0

    def __add__(self, other: Cells) -> Cells:
        return Cells(self.useful + other.useful, self.padded + other.padded)

    @property
    def ratio(self) -> float:
        """Padded over useful; 1 where nothing was computed."""
        return self.padded / self.useful if self.useful else 1.0


def decode_cells(plan: AttentionPlan) -> Cells:
    """KV blocks that the plan's decodes read."""
    out = Cells()
    for decode in plan.decodes:
        variant = decode.variant
        padded = variant.entries if isinstance(variant, FlatDecode) else variant.sequences * variant.blocks
        out += Cells(sum(decode.counts), padded)
    return out


def single_cells(plan: AttentionPlan) -> Cells:
    """Query rows x KV blocks that the plan's per-sequence kernels score."""
    out = Cells()
    for single in plan.singles:
        out += Cells(single.query * single.count, single.variant.query * single.variant.blocks)
    return out
