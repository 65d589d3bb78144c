"""What a served load made of the buckets: which were hit, and what was computed for nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from .attention_plan import FlatDecode, OneSequence, RectangularDecode, Variant
from .capacity import cdiv
from .padding import Cells


class BucketCounts:
    """Sums over the steps of an engine; ``block_size`` in tokens."""

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.steps = 0
        self.most_copies = 0
        self.copies = 0
        self.body: Counter[int] = Counter()
        self.kernels: Counter[str] = Counter()
        self.rows = Cells()
        self.decode = Cells()
        self.prefill = Cells()
        self.measured_rows: Counter[int] = Counter()
        """Real body rows of a step, and in how many steps."""
        self.measured_entries: Counter[int] = Counter()
        """(sequence, block) entries of a step's decodes, the spare one included: what an entry ladder is to hold."""

    def add(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        body: int,
        variants: Iterable[Variant],
        copies: int,
    ) -> None:
        """One step: its lengths, the body's rows, the kernels of one kind of layer, host-to-device copies."""
        self.steps += 1
        self.copies += copies
        self.most_copies = max(self.most_copies, copies)
        self.body[body] += 1
        self.measured_rows[sum(query_lens)] += 1
        self.rows += Cells(sum(query_lens), body)
        singles = decodes = 0
        for variant in variants:
            self.kernels[_named(variant)] += 1
            if isinstance(variant, OneSequence):
                singles += variant.query * variant.blocks
            elif isinstance(variant, FlatDecode):
                decodes += variant.entries
            else:
                decodes += variant.sequences * variant.blocks
        useful_singles = useful_decodes = 0
        for query, context in zip(query_lens, context_lens, strict=True):
            blocks = cdiv(query + context, self._block_size)
            if query == 1 and decodes:
                useful_decodes += blocks
            else:
                useful_singles += query * blocks
        if useful_decodes:
            self.measured_entries[useful_decodes + 1] += 1
        self.decode += Cells(useful_decodes, decodes)
        self.prefill += Cells(useful_singles, singles)

    def summary(self) -> dict[str, Any]:
        """JSON values; a ratio is padded over useful."""
        return {
            "steps": self.steps,
            "body_rows": {str(rows): count for rows, count in sorted(self.body.items())},
            "kernels": dict(sorted(self.kernels.items())),
            "padded_over_useful": {
                "body_rows": round(self.rows.ratio, 3),
                "decode_kv_blocks": round(self.decode.ratio, 3),
                "prefill_cells": round(self.prefill.ratio, 3),
            },
            "measured": {
                "body_rows": {str(rows): count for rows, count in sorted(self.measured_rows.items())},
                "decode_entries": {str(size): count for size, count in sorted(self.measured_entries.items())},
            },
            "host_to_device_copies": self.copies,
            "most_copies_in_a_step": self.most_copies,
        }


def _named(variant: Variant) -> str:
    if isinstance(variant, FlatDecode):
        return f"decode of up to {variant.sequences} sequences, {variant.entries} blocks in all"
    if isinstance(variant, RectangularDecode):
        return f"decode of {variant.sequences} sequences x {variant.blocks} blocks"
    return f"one sequence, {variant.query} rows x {variant.blocks} blocks"
