"""One layer's attention, from the body's rows to the body's rows: store K and V, stage, run the kernels, take back."""

from __future__ import annotations

from collections.abc import Callable

import torch

from ....ports.compiler import GraphCompiler
from .kernels import flat_decode, kv_store, rectangular_decode, sequence_attention, stage_rows, take_rows
from .steps import AttentionSteps
from .tables import FlatTables, KernelTables, RectangularTables, StepTables


class AttentionKernels:
    """The kernels, compiled; one of these an engine, shared by every layer, or each layer compiles its own."""

    def __init__(self, compiler: GraphCompiler) -> None:
        self.kv_store = compiler.kernel(kv_store, name="kv_store")
        self.stage_rows = compiler.kernel(stage_rows, name="stage_rows")
        self.take_rows = compiler.kernel(take_rows, name="take_rows")
        self.sequence_attention = compiler.kernel(sequence_attention, name="sequence_attention")
        self.flat_decode = compiler.kernel(flat_decode, name="flat_decode")
        self.rectangular_decode = compiler.kernel(rectangular_decode, name="rectangular_decode")


class Staging:
    """Two buffers [R, Hq, D] that kernels read queries from and write results to, in a shape without the body bucket.

    One pair does for every layer with the same heads, for a layer is done with it before the next begins. Allocated
    before anything is traced (spyre contract 8.31).
    """

    def __init__(self, rows: int, heads: int, size: int, *, device: torch.device, dtype: torch.dtype) -> None:
        self.query = torch.zeros((rows, heads, size), device=device, dtype=dtype)
        self.result = torch.zeros((rows, heads, size), device=device, dtype=dtype)


class TokenMajorAttention:
    """One layer. ``window`` None and ``soft_cap`` 0 mean none."""

    def __init__(
        self,
        kernels: AttentionKernels,
        steps: AttentionSteps,
        staging: Staging,
        *,
        scale: float,
        soft_cap: float = 0.0,
        window: int | None = None,
    ) -> None:
        if window not in steps.windows:
            raise ValueError(f"a layer has window {window} where steps are built for {steps.windows}; add it there")
        self._kernels = kernels
        self._steps = steps
        self._staging = staging
        self._scale = float(scale)
        self._soft_cap = float(soft_cap)
        self._window = window

    def store(
        self,
        k_pages: torch.Tensor,
        v_pages: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        step: StepTables,
    ) -> None:
        """Write the body's keys and values [T, KV, D] into the layer's pages [NB, bs, KV, D]."""
        self._kernels.kv_store(k_pages, v_pages, step.slots, key, value)

    def attend(
        self, query: torch.Tensor, k_pages: torch.Tensor, v_pages: torch.Tensor, step: StepTables
    ) -> torch.Tensor:
        """[T, Hq, D] for the body's ``query`` [T, Hq, D]; zeros in its padding. `store` comes first."""
        self._kernels.stage_rows(self._staging.query, step.body_rows, query)
        for tables in step.kernels[self._window]:
            self._run(tables, k_pages, v_pages)
        return self._kernels.take_rows(self._staging.result, step.body_rows, step.live)

    def _run(self, tables: KernelTables, k_pages: torch.Tensor, v_pages: torch.Tensor) -> None:
        run: Callable[..., None]
        buffers = (self._staging.query, self._staging.result, k_pages, v_pages, tables.rows, tables.pages)
        numbers = self._steps.slot_numbers
        if isinstance(tables, FlatTables):
            self._kernels.flat_decode(
                *buffers,
                tables.owner,
                tables.low,
                tables.high,
                tables.first_round,
                tables.second_round,
                numbers,
                self._steps.shapes.radix,
                self._scale,
                self._soft_cap,
            )
        elif isinstance(tables, RectangularTables):
            run = self._kernels.rectangular_decode
            run(*buffers, tables.owner, tables.low, tables.high, numbers, self._scale, self._soft_cap)
        else:
            run = self._kernels.sequence_attention
            run(*buffers, tables.low, tables.high, numbers, self._scale, self._soft_cap)
