"""The composition root of a Spyre engine: which device, which compiler, which telemetry."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from ...adapters.torch_spyre.attention_engine import TokenMajorEngine
from ...adapters.torch_spyre.compile import CountingBackend, TorchCompiler, find_blocks, raise_dynamo_limits
from ...adapters.torch_spyre.layers.widening import widen_heads, widen_mlp
from ...adapters.vllm.spyre.config import resolved
from ...adapters.vllm.spyre.kit import DeviceKit
from ...adapters.vllm.spyre.worker import SpyreWorker
from ...domain.attention_ladders import LadderTexts, attention_shapes
from ...domain.buckets import Ladder
from ...domain.whole_gathers import clear_of_whole_gathers
from ...ports.compiler import GraphCompiler, Uncompiled
from ...ports.kernels import AttentionEngine


from vllm.logger import init_logger
log = init_logger(f'vllm.{__name__}')

class _Silent:
    def step(self, query_lens: Sequence[int], context_lens: Sequence[int], body: int, copies: int) -> None: ...

    def close(self) -> None: ...


class Worker(SpyreWorker):
    def open_device(self) -> DeviceKit:
        config = resolved(self.vllm_config)
        from ...adapters.emulator.spyre import checking_backend, load
        load()
        device = torch.device("spyre")
        raise_dynamo_limits()
        compiler: GraphCompiler = Uncompiled()
        torch_compiler = None
        if config.compiled:
            torch_compiler = TorchCompiler(CountingBackend(checking_backend()))
            compiler = torch_compiler
        scheduler, model = self.vllm_config.scheduler_config, self.model_config

        def attention(pages: int, windows: Sequence[int | None], body: Ladder, extra: Mapping[str, Ladder]) -> AttentionEngine[Tensor]:
            options = config.options
            shapes, notes = attention_shapes(
                block_size=self.cache_config.block_size,
                max_model_len=model.max_model_len,
                max_num_seqs=scheduler.max_num_seqs,
                max_num_batched_tokens=scheduler.max_num_batched_tokens,
                decode=options.decode,
                texts=LadderTexts(kv=options.kv_ladder, query=options.query_ladder, sequences=options.num_seqs_ladder, entries=options.entry_ladder),
            )
            for note in notes:
                log.warning("Spyre: %s", note)
            shapes = clear_of_whole_gathers(shapes, pages)
            return TokenMajorEngine(shapes, windows=windows, body=body, extra=extra, device=device, dtype=model.dtype, compiler=compiler)

        def compile_model(m: nn.Module, is_attention: Callable[[nn.Module], bool]) -> None:
            assert torch_compiler
            torch_compiler.blocks(find_blocks(m, is_attention))

        return DeviceKit(device=device, telemetry=_Silent(), attention=attention, compile_model=compile_model, widen_heads=widen_heads, widen_mlp=widen_mlp)
