"""What a step's kernels read, on the device: made once a step, shared by every layer.

Every tensor here owns its storage from offset 0: a view into a larger table is read from the table's start by the
device, which is how every sequence but the first came to read the first one's pages (spyre contract 8.1).

Shapes: B rows and E entries of a flat decode (`FlatDecode`), r its radix, G its groups, N blocks of a rectangular
decode or of one sequence, A query rows of one sequence, C its chunks, T rows of the body bucket. ``dtype`` is the
model's (fp16). A bound is a number of slots, at most 2048, so that fp16 holds it exactly.
"""

from __future__ import annotations

from typing import TypeAlias

import attrs
import torch

from ....domain.attention_plan import FlatDecode, OneSequence, RectangularDecode


@attrs.frozen(eq=False)
class FlatTables:
    """One flat decode."""

    variant: FlatDecode
    rows: torch.Tensor
    """[B] int64: staging row of each sequence; the dump row past the last."""
    pages: torch.Tensor
    """[E] int32: page of each entry. Spare entries repeat a page of the step: never the null block."""
    owner: torch.Tensor
    """[E] int32: which of the B rows an entry belongs to."""
    low: torch.Tensor | None
    """[E] dtype: first slot of the page that is attended to; None without a window."""
    high: torch.Tensor
    """[E] dtype: where the slots attended to end; 0 in spare entries."""
    first_round: torch.Tensor
    """[G * r] int32: entries brought together by each group; spare places name the last entry, always a spare one."""
    second_round: torch.Tensor
    """[B * r] int32: groups of each row; spare places name the last group, which is always spare."""


@attrs.frozen(eq=False)
class RectangularTables:
    """One rectangular decode; entry (b, n) stands at b * N + n."""

    variant: RectangularDecode
    rows: torch.Tensor
    """[B] int64, as in `FlatTables`."""
    pages: torch.Tensor
    """[B * N] int32."""
    owner: torch.Tensor
    """[B * N] int32."""
    low: torch.Tensor | None
    """[B * N] dtype."""
    high: torch.Tensor
    """[B * N] dtype."""


@attrs.frozen(eq=False)
class SequenceTables:
    """One per-sequence kernel call."""

    variant: OneSequence
    rows: torch.Tensor
    """[A] int64: staging row of each query row; rows past the last repeat it, in reading and in writing."""
    pages: torch.Tensor
    """[N] int32; spare places repeat the sequence's last page."""
    low: torch.Tensor | None
    """[C, ceil64(A)] dtype: first slot of chunk c that query row a attends to; None without a window."""
    high: torch.Tensor
    """[C, ceil64(A)] dtype: where they end, exclusive."""


KernelTables: TypeAlias = "FlatTables | RectangularTables | SequenceTables"


@attrs.frozen(eq=False)
class StepTables:
    """One step. ``kernels`` is by window: None for layers that attend to everything."""

    kernels: dict[int | None, tuple[KernelTables, ...]]
    body_rows: torch.Tensor
    """[T] int64: staging row of each body row: itself, or the dump row for padding."""
    live: torch.Tensor
    """[T, 1, 1] dtype: 1 for a real row, 0 for padding."""
    slots: torch.Tensor
    """[T] int64: KV slot of each body row (block * block_size + offset); 0, in the null block, for padding."""
    extra: dict[str, torch.Tensor]
    """Whatever else of int64 [n] went up with the step (token ids, positions, rows to sample)."""
    copies: int
    """Host-to-device copies that the step took."""
