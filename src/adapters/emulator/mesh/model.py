"""The model classes a registry names: any causal language model of transformers, on the emulated mesh.

Three classes, one model: ``EmulatedForCausalLM`` runs lanes in one step, ``EmulatedPlainForCausalLM`` knows no
lanes, ``EmulatedLegacyForCausalLM`` has the older decode form with ``reset_batch``.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import numpy as np
import numpy.typing as npt
import torch

from .device import EmulatedMesh
from .emulated_model import (
    DEFAULT_MAX_SEQ_LEN,
    MAX_TOKENS_ALL_USERS,
    EmulatedModel,
    copied,
    process_output,
    read_output,
)
from .kv_cache import PagedKVCache
from .outputs import DeviceOutput, HostCopy, HostOutput
from .rules import Rule, RuleBroken
from .sampler import MAX_CANDIDATES, RowSampling
from .slots import HostTables, SlotBook
from .wire import WireSampling, require_neutral

Model = TypeVar("Model", bound="EmulatedPlainForCausalLM")

CAPABILITIES: dict[str, Any] = {
    "supports_sample_on_device": True,
    "supports_tokens_and_logits": True,
    "supports_async_decode": True,
    "supports_async_prefill": True,
    "supports_prefix_caching": True,
    "supports_chunked_prefill": True,
    "supports_device_penalties": False,
    "supports_device_seeds": True,
    "max_device_top_k": MAX_CANDIDATES,
}


class EmulatedPlainForCausalLM:
    """One lane. Made by :meth:`initialize_vllm_model`; the constructor's other arguments are vLLM's."""

    model_capabilities: ClassVar[dict[str, Any]] = CAPABILITIES
    decode_input_update_contract: ClassVar[int] = 1

    def __init__(self, *, vllm_config: object = None, prefix: str = "", model: EmulatedModel | None = None) -> None:
        if model is None:
            raise TypeError(f"{type(self).__name__} runs on a mesh; make it with initialize_vllm_model")
        self._model = model

    @classmethod
    def lane_counts_for(cls, mesh_shape: tuple[int, int]) -> tuple[int, ...]:
        """Lane counts allowed on a (rows, columns) mesh; (): the class has no lanes."""
        return ()

    @classmethod
    def initialize_vllm_model(
        cls: type[Model],
        hf_config: Any,
        mesh_device: EmulatedMesh,
        max_batch_size: int,
        max_seq_len: int | None = None,
        tt_data_parallel: int = 1,
        optimizations: str | None = None,
    ) -> Model:
        """Contract 3.1. ``max_batch_size`` is global; ``optimizations`` changes nothing here."""
        model = EmulatedModel.load(
            hf_config,
            mesh_device,
            capacity=max_batch_size,
            lanes=tt_data_parallel,
            lane_counts=cls.lane_counts_for(mesh_device.shape) or (1,),
            max_seq_len=max_seq_len or DEFAULT_MAX_SEQ_LEN,
        )
        return cls(model=model)

    @classmethod
    def get_max_tokens_all_users(
        cls,
        *,
        model_name: str = "",
        num_devices: int = 1,
        tt_data_parallel: int = 1,
        max_model_len: int = 0,
        max_num_seqs: int = 1,
    ) -> int:
        """KV tokens of one lane's pool."""
        return MAX_TOKENS_ALL_USERS

    # -- vLLM's registry looks for these; the mesh never calls them

    def embed_input_ids(self, input_ids: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the model runs on the mesh; use prefill_forward and decode_forward")

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the model runs on the mesh; use prefill_forward and decode_forward")

    def compute_logits(self, hidden_states: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the model runs on the mesh; use prefill_forward and decode_forward")

    # -- KV cache and warm-up

    def allocate_kv_cache(self, shape: tuple[int, ...], dtype: torch.dtype, num_layers: int) -> PagedKVCache:
        return self._model.allocate([(tuple(shape), dtype, layer) for layer in range(num_layers)])

    def allocate_kv_cache_per_layer(
        self, per_layer_specs: Sequence[tuple[tuple[int, ...], torch.dtype, int]]
    ) -> PagedKVCache:
        return self._model.allocate(list(per_layer_specs))

    def warmup_model_prefill(self, *, kv_cache: object, can_sample_on_device: bool, enable_trace: bool) -> None:
        self._model.book(kv_cache)
        self._model.warm_up_prefill(sampled=can_sample_on_device, traced=enable_trace)

    def warmup_model_decode(
        self, *, kv_cache: object, max_batch_size: int, num_blocks: int, can_sample_on_device: bool, enable_trace: bool
    ) -> None:
        self._model.book(kv_cache)
        self._model.warm_up_decode(
            batch=max_batch_size, blocks_per_row=num_blocks, sampled=can_sample_on_device, traced=enable_trace
        )

    # -- steps

    def prefill_forward(
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: object,
        prompt_lens: npt.NDArray[np.int64],
        start_pos: npt.NDArray[np.int64],
        empty_slots: Sequence[int],
        enable_trace: bool = False,
        page_tables_per_layer: Sequence[torch.Tensor] | None = None,
        sampling_params: WireSampling | None = None,
        logits_rows: Sequence[int] | None = None,
        read_from_device: bool = True,
    ) -> HostOutput | DeviceOutput:
        """Contract 3.3, with our ``logits_rows`` and ``read_from_device`` (docs/generator-contract.md)."""
        out = self._model.prefill(
            tokens=tokens,
            page_table=page_table,
            page_tables_per_layer=page_tables_per_layer,
            starts=[int(start) for start in start_pos],
            ends=[int(end) for end in prompt_lens],
            slots=[int(slot) for slot in empty_slots],
            kv_cache=kv_cache,
            wire=sampling_params,
            logits_rows=logits_rows,
            traced=enable_trace,
        )
        return out.wait() if read_from_device else out

    def decode_forward(
        self,
        *,
        tokens: torch.Tensor,
        start_pos: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: object,
        reload_inputs: bool,
        reload_page_table: bool,
        reload_sampling_params: bool,
        reset_sampling_state: bool,
        enable_trace: bool = False,
        read_from_device: bool = True,
        page_tables_per_layer: Sequence[torch.Tensor] | None = None,
        sampling_params: WireSampling | None = None,
        logits_rows: Sequence[int] | None = None,
    ) -> HostOutput | DeviceOutput:
        """Contract 3.4 with the explicit commands of 3.10, and our ``logits_rows``."""
        if reload_inputs and reload_page_table:
            raise RuleBroken(Rule.RELOAD_CONFLICT, "reload_inputs and reload_page_table")
        if reset_sampling_state and not reload_inputs:
            raise RuleBroken(Rule.RELOAD_CONFLICT, "reset_sampling_state without reload_inputs")
        if reload_sampling_params and sampling_params is None:
            raise RuleBroken(Rule.RELOAD_CONFLICT, "reload_sampling_params without sampling_params")
        model, book = self._model, self._model.book(kv_cache)
        sampled = sampling_params is not None
        model.require_decode_shape(tokens, start_pos, page_table, sampled=sampled, traced=enable_trace)
        tables = model.tables(page_table, page_tables_per_layer, len(page_table))
        reloaded = None
        if reload_inputs:
            reloaded = _reload(book, tokens, start_pos, tables)
        elif reload_page_table:
            book.require_layout(start_pos.numpy() >= 0)
            book.reload_tables(copied(tables))
        else:
            book.keep(start_pos.numpy() >= 0, tables)
        sampling = None if sampling_params is None else model.sampling(sampling_params, len(page_table))
        if sampling is not None:
            if reload_sampling_params:
                require_neutral(sampling, ~book.active)
                book.reload_sampling(sampling)
            else:
                _require_resident(book, sampling)
        out = model.decode(book, tokens=reloaded, sampling=sampling, logits_rows=logits_rows)
        return out.wait() if read_from_device else out

    def read_decode_output(self, out: object, *, async_read: bool = False) -> HostOutput | tuple[HostCopy, list[Any]]:
        """Contract 3.5; for a prefill's handle as well."""
        return read_output(out, async_read=async_read)

    def process_decode_output_host(self, out: object, *, is_tokens: bool) -> HostOutput:
        return process_output(out, is_tokens=is_tokens)


class EmulatedForCausalLM(EmulatedPlainForCausalLM):
    """Single-execute: one step runs all lanes, one lane a group of mesh columns."""

    @classmethod
    def lane_counts_for(cls, mesh_shape: tuple[int, int]) -> tuple[int, ...]:
        """The divisors of the columns: attention is data parallel over them."""
        columns = mesh_shape[1]
        return tuple(count for count in range(1, columns + 1) if columns % count == 0)


class EmulatedLegacyForCausalLM(EmulatedForCausalLM):
    """The decode form before the explicit commands: the device derives its reloads from ``reset_batch``.

    Without device sampling every step reloads. With it, ``reset_batch`` reloads, and page tables and sampling
    parameters are taken from every call.
    """

    decode_input_update_contract: ClassVar[int] = 0

    def decode_forward(  # type: ignore[override]  # the older form of the same call
        self,
        *,
        tokens: torch.Tensor,
        start_pos: torch.Tensor,
        page_table: torch.Tensor,
        kv_cache: object,
        enable_trace: bool = False,
        read_from_device: bool = True,
        page_tables_per_layer: Sequence[torch.Tensor] | None = None,
        sampling_params: WireSampling | None = None,
        reset_batch: bool = False,
        logits_rows: Sequence[int] | None = None,
    ) -> HostOutput | DeviceOutput:
        model, book = self._model, self._model.book(kv_cache)
        sampled = sampling_params is not None
        model.require_decode_shape(tokens, start_pos, page_table, sampled=sampled, traced=enable_trace)
        tables = model.tables(page_table, page_tables_per_layer, len(page_table))
        reloaded = None
        if reset_batch or not sampled:
            reloaded = _reload(book, tokens, start_pos, tables)
        else:
            book.require_layout(start_pos.numpy() >= 0)
            book.reload_tables(copied(tables))
        sampling = None if sampling_params is None else model.sampling(sampling_params, len(page_table))
        if sampling is not None:
            require_neutral(sampling, ~book.active)
        out = model.decode(book, tokens=reloaded, sampling=sampling, logits_rows=logits_rows)
        return out.wait() if read_from_device else out


def _reload(
    book: SlotBook, tokens: torch.Tensor, positions: torch.Tensor, tables: HostTables
) -> npt.NDArray[np.int64]:
    fresh = tokens.numpy()[:, 0].astype(np.int64)
    book.reload(fresh, positions.numpy().astype(np.int64), copied(tables))
    return fresh


def _require_resident(book: SlotBook, sampling: RowSampling) -> None:
    """Without a reload the parameters shown must be the ones the device has, in every active row."""
    resident = book.sampling
    if resident is sampling:
        return
    rows = np.flatnonzero(book.active)
    same = resident is not None and len(resident.seeds) == len(sampling.seeds)
    if resident is not None and same:
        same = (
            np.array_equal(resident.temperature[rows], sampling.temperature[rows])
            and np.array_equal(resident.top_k[rows], sampling.top_k[rows])
            and np.array_equal(resident.top_p[rows], sampling.top_p[rows])
            and all(resident.seeds[row] == sampling.seeds[row] for row in rows.tolist())
        )
    if not same:
        raise RuleBroken(Rule.LATE_RELOAD, "the sampling parameters of an active row changed without a reload")
