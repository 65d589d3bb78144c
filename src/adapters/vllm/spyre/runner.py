"""vLLM's V1 model runner with its forward pass on Spyre.

Inherited as it is: request states, input preparation, sampling, structured output, logprobs. The runner's own device is
the host; ids, positions, rows to sample and all that attention needs go to the card once a step, hidden states stay
there, logits come back.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import attrs
import numpy as np
import torch
from torch import Tensor, nn
from vllm.config import CUDAGraphMode, VllmConfig
from vllm.forward_context import BatchDescriptor
from vllm.logger import init_logger
from vllm.model_executor.layers.attention import Attention
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.worker.block_table import SlotMappingMode
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from ....domain.buckets import Ladder, doubling
from ....domain.rules import ConfigurationError
from ....domain.seeds import token_seed
from ....domain.spyre_options import Guard
from ....domain.spyre_rules import gather_refusal
from ....ports.kernels import AttentionEngine, LayerAttention, Step
from .async_output import HostEvent, HostOutput
from .attention_backend import LayerTraits, PagedKV, StepAttention
from .config import resolved, torch_dtype
from .device_rows import DeviceRows, ServedModel, padded_rows
from .kit import DeviceKit
from .loader import load_on_host, naming_the_model

# vLLM's own logger: its lines reach the user of `vllm serve`, under its format and level.
log = init_logger(f"vllm.{__name__}")


@attrs.frozen(eq=False)
class RunningStep(StepAttention):
    """The step's tables and each layer's attention over them."""

    tables: Step[Tensor]
    layers: Mapping[str, LayerAttention[Tensor]]
    rows: np.ndarray[Any, np.dtype[np.int64]]
    """rows to sample"""

    def attend(self, layer: str, query: Tensor, key: Tensor, value: Tensor, pages: PagedKV) -> Tensor:
        attention = self.layers[layer]
        attention.store(pages.k, pages.v, key, value, self.tables)
        return attention.attend(query, pages.k, pages.v, self.tables)


class SpyreModelRunner(GPUModelRunner):
    """``kit``: the device and what computes on it."""

    def __init__(self, vllm_config: VllmConfig, kit: DeviceKit) -> None:
        self.kit = kit
        self.spyre = resolved(vllm_config)
        with _without_cuda_streams(vllm_config):
            super().__init__(vllm_config, torch.device("cpu"))
        self.use_async_scheduling = bool(vllm_config.scheduler_config.async_scheduling)
        self._asynchronous = self.use_async_scheduling
        self.device_dtype: torch.dtype = torch_dtype(self.model_config)
        self._late: tuple[Tensor, Any, list[int]] | None = None
        self._step: RunningStep | None = None
        self._late_graphs = 0
        self.warm = False
        """True once every shape has run: steps are counted from then on"""
        self._attention: AttentionEngine[Tensor] | None = None
        self._layers: dict[str, LayerAttention[Tensor]] = {}
        body = self.spyre.body
        self.body_ladder = Ladder(body) if body else None
        self.row_ladder = (
            Ladder(min(size, self.max_num_reqs) for size in body) if body else doubling(self.max_num_reqs)
        )

    # -- start ---------------------------------------------------------------------------------------------------------

    def load_model(self, load_dummy_weights: bool = False, *, model: nn.Module | None = None) -> None:
        """On the host, then to the card, then compiled in place."""
        widening = self.spyre
        hf_config = self.model_config.hf_text_config
        kv_heads = self.model_config.get_total_num_kv_heads()

        def widen(name: str, weight: Tensor) -> Tensor:
            weight = self.kit.widen_heads(name, weight, widening.heads, hf_config.num_attention_heads, kv_heads)
            return self.kit.widen_mlp(name, weight, widening.mlp)

        with naming_the_model(self.model_config, "be loaded for the card"):
            loaded = (
                load_on_host(self.vllm_config, self.spyre, widen, self.kit.weights_dtype) if model is None else model
            )
        loaded.to(device=self.kit.device, dtype=self.device_dtype)
        self.model_memory_usage = sum(p.numel() * p.element_size() for p in loaded.parameters())
        if self.spyre.compiled:
            self.kit.compile_model(loaded, _is_attention)
        self.model: Any = ServedModel(loaded, self.row_ladder, self._upload)

    def get_model(self) -> nn.Module:
        module: nn.Module = self.model.module
        return module

    def _upload(self, index: np.ndarray[Any, np.dtype[np.int64]]) -> Tensor:
        return torch.from_numpy(index).to(self.kit.device)

    def initialize_metadata_builders(self, kv_cache_config: KVCacheConfig, kernel_block_sizes: list[int]) -> None:
        """None are wanted: decodes may stand anywhere in the batch."""
        self.reorder_batch_threshold = None

    def may_reinitialize_input_batch(self, kv_cache_config: KVCacheConfig) -> None:
        super().may_reinitialize_input_batch(kv_cache_config)
        # Slots are worked out with the step's other tables; vLLM's own way there is a Triton kernel.
        for table in self.input_batch.block_table.block_tables:
            table.slot_mapping_mode = SlotMappingMode.NONE

    def initialize_kv_cache_tensors(
        self, kv_cache_config: KVCacheConfig, *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """K and V pages of its own for every layer."""
        if len(kv_cache_config.kv_cache_groups) != 1:
            raise RuntimeError(
                f"the KV cache has {len(kv_cache_config.kv_cache_groups)} groups and Spyre runs one block table; serve "
                "a model whose layers keep the same kind of cache"
            )
        context = self.compilation_config.static_forward_context
        names = [name for group in kv_cache_config.kv_cache_groups for name in group.layer_names]
        pages: dict[str, Any] = {}
        for name in names:
            impl = context[name].impl
            shape = (kv_cache_config.num_blocks, self.cache_config.block_size, impl.num_kv_heads, impl.head_size)
            problem = gather_refusal(
                num_blocks=shape[0],
                block_size=shape[1],
                num_kv_heads=shape[2],
                head_size=shape[3],
                itemsize=self.device_dtype.itemsize,
            )
            if problem is not None:
                raise ConfigurationError((problem,))
            with torch.inference_mode(False):
                k = torch.empty(shape, dtype=self.device_dtype, device=self.kit.device)
                v = torch.empty(shape, dtype=self.device_dtype, device=self.kit.device)
            pages[name] = PagedKV(k, v)
            context[name].bind_kv_cache(pages[name])
            self.kv_caches.append(pages[name])
        self._attach(names)
        return pages

    def _attach(self, names: list[str]) -> None:
        """Build the engine's attention for these layers, before anything is traced."""
        context = self.compilation_config.static_forward_context
        traits: dict[str, LayerTraits] = {name: context[name].impl.traits() for name in names}
        body = self.body_ladder or Ladder((self.max_num_tokens,))
        attention = self.kit.attention(
            self.vllm_config.cache_config.num_gpu_blocks or 0,
            tuple(dict.fromkeys(each.window for each in traits.values())),
            body,
            {"ids": body, "positions": body, "rows": self.row_ladder},
        )
        self._attention = attention
        self._layers = {
            name: attention.layer(
                heads=context[name].impl.num_heads,
                size=context[name].impl.head_size,
                scale=each.scale,
                soft_cap=each.soft_cap,
                window=each.window,
            )
            for name, each in traits.items()
        }

    @property
    def attention(self) -> AttentionEngine[Tensor]:
        assert self._attention is not None, "the KV cache is allocated before the first step"
        return self._attention

    @property
    def layer_names(self) -> tuple[str, ...]:
        return tuple(self._layers)

    def run_kinds(self, step: RunningStep, window: int | None) -> None:
        """One layer of each kind whose window is ``window``, on queries, keys and values of zeros."""
        context = self.compilation_config.static_forward_context
        kinds: dict[Any, str] = {}
        for name in self._layers:
            impl = context[name].impl
            kinds.setdefault((impl.num_heads, impl.num_kv_heads, impl.head_size, impl.traits()), name)
        rows = int(step.tables.extra["ids"].shape[0])
        for (heads, kv_heads, size, traits), name in kinds.items():
            if traits.window == window:
                shape: dict[str, Any] = {"dtype": self.device_dtype, "device": self.kit.device}
                query, key = torch.zeros(rows, heads, size, **shape), torch.zeros(rows, kv_heads, size, **shape)
                step.attend(name, query, key, torch.zeros_like(key), context[name].kv_cache)

    # -- step ----------------------------------------------------------------------------------------------------------

    def _determine_batch_execution_and_padding(self, num_tokens: int, *args: Any, **kwargs: Any) -> Any:
        return CUDAGraphMode.NONE, BatchDescriptor(num_tokens=self._body_rows(num_tokens)), False, None, None

    def _body_rows(self, num_tokens: int) -> int:
        if self.body_ladder is None:
            return num_tokens
        rows = self.body_ladder.fit(num_tokens)
        assert rows is not None, "no step exceeds max_num_batched_tokens, which is the widest body"
        return rows

    def _get_slot_mappings(self, *args: Any, **kwargs: Any) -> Any:
        return {}, {}

    def _build_attention_metadata(self, num_tokens: int, num_reqs: int, *args: Any, **kwargs: Any) -> Any:
        """One object for all layers. Ids and positions go up with it: input preparation is over."""
        starts = self.query_start_loc.np[: num_reqs + 1].astype(np.int64)
        lengths = np.diff(starts)
        contexts = self.seq_lens[:num_reqs].numpy() - lengths
        table = self.input_batch.block_table[0].get_numpy_array()[:num_reqs]
        positions = self.positions[:num_tokens].numpy()
        self._step = self.build_step(
            lengths.tolist(), contexts.tolist(), table, self.input_ids.gpu[:num_tokens].numpy(), positions
        )
        return dict.fromkeys(self._layers, self._step), None

    def build_step(
        self, query_lens: list[int], context_lens: list[int], block_table: Any, ids: Any, positions: Any
    ) -> RunningStep:
        """The tables of a step on the device, in at most three copies. ``ids`` and ``positions``: one a real row."""
        assert self._attention is not None, "the KV cache is allocated before the first step"
        num_tokens = len(ids)
        body = self._body_rows(num_tokens)
        padded_ids, padded_positions = np.zeros(body, np.int64), np.zeros(body, np.int64)
        padded_ids[:num_tokens], padded_positions[:num_tokens] = ids, positions
        size = self.cache_config.block_size
        owner = np.repeat(np.arange(len(query_lens)), query_lens)
        slots = block_table[owner, positions // size].astype(np.int64) * size + positions % size
        last = np.cumsum(np.asarray(query_lens, np.int64)) - 1
        bucket = self.row_ladder.fit(len(last))
        assert bucket is not None, "a step has no more sequences than max_num_seqs"
        extra = {"ids": padded_ids, "positions": padded_positions, "rows": padded_rows(last, bucket)}
        tables = self._attention.build(query_lens, context_lens, block_table, slots, body, extra)
        if self.warm:
            variants = self._attention.variants(tables)
            self.kit.telemetry.step(query_lens, context_lens, body, variants, tables.copies)
        return RunningStep(tables, self._layers, last)

    def _model_forward(self, *args: Any, **kwargs: Any) -> DeviceRows:
        step = self._step
        assert step is not None, "attention metadata is built before the forward pass"
        hidden = self.forward_step(step)
        if self.spyre.options.guard is not Guard.OFF:
            self._guard()
        return hidden

    def _guard(self) -> None:
        late = self.kit.late_graphs()
        if late == self._late_graphs:
            return
        new, self._late_graphs = late - self._late_graphs, late
        sentence = f"{new} graphs were compiled while serving; report it with the lengths of the requests"
        if self.spyre.options.guard is Guard.ERROR:
            raise RuntimeError(f"{sentence}, or unset SPYRE_COMPILE_GUARD")
        log.warning("Spyre: %s", sentence)

    def forward_step(self, step: RunningStep) -> DeviceRows:
        extra = step.tables.extra
        hidden = self.model.forward(extra["ids"], extra["positions"])
        return DeviceRows(hidden, np.arange(hidden.shape[0]), step.rows, extra["rows"])

    # -- sampling ------------------------------------------------------------------------------------------------------

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        """A seeded request's n-th token depends on (seed, n) alone: no stream is kept that a partial prefill or a
        preemption could put out of step."""
        batch = self.input_batch
        for row, generator in batch.generators.items():
            request = self.requests[batch.req_ids[row]]
            seed = request.sampling_params.seed if request.sampling_params is not None else None
            if seed is not None:
                generator.manual_seed(token_seed(seed, len(request.output_token_ids)))
        return super()._sample(*args, **kwargs)

    def _bookkeeping_sync(self, scheduler_output: Any, sampler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """vLLM's own, without the two things in it that are CUDA's.

        It winds back the generator of a row in the middle of its prompt, by an offset that host generators lack: such
        rows' generators are kept out of its sight. And where scheduling is asynchronous the caller goes on to wait on
        CUDA streams: it is told otherwise, and :meth:`sample_tokens` makes the late output itself.
        """
        generators = self.input_batch.generators
        discarded = np.nonzero(self.discard_request_mask.np[: self.input_batch.num_reqs])[0].tolist()
        held = {row: generators.pop(row) for row in discarded if row in generators}
        try:
            result = super()._bookkeeping_sync(scheduler_output, sampler_output, *args, **kwargs)
        finally:
            generators.update(held)
        if self._asynchronous:
            self._late = (sampler_output.sampled_token_ids, sampler_output.logprobs_tensors, discarded)
            self.use_async_scheduling = False
        return result

    @torch.inference_mode()
    def sample_tokens(self, grammar_output: Any) -> Any:  # type: ignore[override]
        try:
            output = super().sample_tokens(grammar_output)
        finally:
            self.use_async_scheduling = self._asynchronous
        if self._late is None:
            return output
        (sampled, logprobs, discarded), self._late = self._late, None
        event: Any = HostEvent()
        self.input_batch.set_async_sampled_token_ids(sampled, event)
        return HostOutput(output, sampled, logprobs, discarded)

    def _sync_device(self) -> None:
        """What the host reads has been copied down already."""


@contextmanager
def _without_cuda_streams(vllm_config: VllmConfig) -> Iterator[None]:
    """vLLM's constructor makes CUDA streams where scheduling is asynchronous; nothing else of it depends on that."""
    scheduler = vllm_config.scheduler_config
    own = scheduler.async_scheduling
    scheduler.async_scheduling = False
    try:
        yield
    finally:
        scheduler.async_scheduling = own


def _is_attention(module: nn.Module) -> bool:
    return isinstance(module, Attention)
