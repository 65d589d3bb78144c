"""Token-major attention behind :class:`stepshape.ports.kernels.AttentionEngine`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from ...domain.attention_plan import AttentionShapes, Variant
from ...domain.buckets import Ladder
from ...domain.warmup import WarmupStep, warmup_plan
from ...ports.compiler import GraphCompiler
from .attention.forward import AttentionKernels, Staging, TokenMajorAttention
from .attention.steps import AttentionSteps
from .attention.tables import StepTables


class TokenMajorEngine:
    """One set of compiled kernels, one pair of staging buffers for each kind of heads."""

    def __init__(
        self,
        shapes: AttentionShapes,
        *,
        windows: Sequence[int | None],
        body: Ladder,
        extra: Mapping[str, Ladder],
        device: torch.device,
        dtype: torch.dtype,
        compiler: GraphCompiler,
    ) -> None:
        self._device, self._dtype, self._body = device, dtype, body
        self._kernels = AttentionKernels(compiler)
        self.steps = AttentionSteps(shapes, windows=windows, body=body, device=device, dtype=dtype, extra=extra)
        self._staging: dict[tuple[int, int], Staging] = {}

    def build(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_table: Any,
        slots: Any,
        body_rows: int,
        extra: Mapping[str, Any] | None = None,
    ) -> StepTables:
        return self.steps.build(query_lens, context_lens, block_table, slots, body_rows, extra)

    def variants(self, step: StepTables) -> tuple[Variant, ...]:
        return tuple(tables.variant for tables in next(iter(step.kernels.values())))

    def warm_up_steps(self) -> tuple[WarmupStep, ...]:
        return warmup_plan(self.steps.shapes, self.steps.windows, self._body).steps

    def layer(self, *, heads: int, size: int, scale: float, soft_cap: float, window: int | None) -> TokenMajorAttention:
        staging = self._staging.get((heads, size))
        if staging is None:
            staging = Staging(self.steps.rows, heads, size, device=self._device, dtype=self._dtype)
            self._staging[heads, size] = staging
        return TokenMajorAttention(
            self._kernels, self.steps, staging, scale=scale, soft_cap=soft_cap, window=window
        )
