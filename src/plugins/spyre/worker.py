"""The composition root of a Spyre engine: which device, which compiler, which telemetry."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn
from vllm.logger import init_logger

from ...adapters.telemetry.bucket_log import BucketLog
from ...adapters.telemetry.progress import progress_bar
from ...adapters.torch_spyre.attention_engine import TokenMajorEngine
from ...adapters.torch_spyre.compile import CountingBackend, TorchCompiler, find_blocks, raise_dynamo_limits
from ...adapters.torch_spyre.layers.widening import widen_heads, widen_mlp
from ...adapters.vllm.spyre.config import resolved, torch_dtype
from ...adapters.vllm.spyre.kit import DeviceKit
from ...adapters.vllm.spyre.worker import SpyreWorker
from ...domain.attention_ladders import LadderTexts, attention_shapes
from ...domain.bucket_counts import BucketCounts
from ...domain.buckets import Ladder
from ...domain.selection import Device
from ...domain.spyre_options import Granularity
from ...ports.compiler import GraphCompiler, Uncompiled
from ...ports.kernels import AttentionEngine
from .cards import OpenedCard, open_emulated, open_real

REPORT_VARIABLE = "STEPSHAPE_STEP_REPORT"
"""Names a file that gets the sums over all steps, as JSON, when the worker closes."""

log = init_logger(f"vllm.{__name__}")


class Worker(SpyreWorker):
    def open_device(self) -> DeviceKit:
        config = resolved(self.vllm_config)
        cards = config.options.devices
        index = self.local_rank if cards is None else cards[self.local_rank]
        ranks = self.parallel_config.tensor_parallel_size
        card = open_emulated(index, ranks) if config.device is Device.EMULATED else open_real(index)
        raise_dynamo_limits()
        compiler = TorchCompiler(CountingBackend(card.backend)) if config.compiled else None
        report = os.environ.get(REPORT_VARIABLE, "").strip()

        def compile_model(model: nn.Module, is_attention: Callable[[nn.Module], bool]) -> None:
            assert compiler is not None, "an eager engine compiles nothing"
            blocks = find_blocks(model, is_attention) if config.options.granularity is Granularity.BLOCK else []
            if not blocks and config.options.granularity is Granularity.BLOCK:
                log.warning("Spyre: %s has no decoder blocks; the whole model is compiled", type(model).__name__)
            compiler.blocks(blocks or [model])

        return DeviceKit(
            device=card.device,
            telemetry=BucketLog(
                BucketCounts(self.cache_config.block_size), Path(report) if report else None, card.events
            ),
            attention=lambda *arguments: self._attention(card, compiler or Uncompiled(), *arguments),
            compile_model=compile_model,
            widen_heads=widen_heads,
            widen_mlp=widen_mlp,
            weights_dtype=torch.float32 if card.exact else torch_dtype(self.model_config),
            seal=lambda: None if compiler is None else compiler.backend.seal(),
            late_graphs=lambda: 0 if compiler is None else compiler.backend.late,
            progress=progress_bar,
        )

    def _attention(
        self,
        card: OpenedCard,
        compiler: GraphCompiler,
        pages: int,
        windows: Sequence[int | None],
        body: Ladder,
        extra: Mapping[str, Ladder],
    ) -> AttentionEngine[Tensor]:
        options = resolved(self.vllm_config).options
        shapes, notes = attention_shapes(
            block_size=self.cache_config.block_size,
            max_model_len=self.model_config.max_model_len,
            max_num_seqs=self.scheduler_config.max_num_seqs,
            max_num_batched_tokens=self.scheduler_config.max_num_batched_tokens,
            decode=options.decode,
            texts=LadderTexts(
                kv=options.kv_ladder,
                query=options.query_ladder,
                sequences=options.num_seqs_ladder,
                entries=options.entry_ladder,
            ),
        )
        for note in notes:
            log.warning("Spyre: %s", note)
        return TokenMajorEngine(
            shapes.for_pool(pages),
            windows=windows,
            body=body,
            extra=extra,
            device=card.device,
            dtype=torch_dtype(self.model_config),
            compiler=compiler,
        )
