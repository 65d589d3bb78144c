"""Drives a tt-metal-style model object through the generator contract: the ``Generator`` of a real or emulated mesh.

Nothing of ttnn is imported here: events are synchronized through the mesh port. What a model does not declare
is not sent to it.
"""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import structlog
import torch

from ...ports.capabilities import ModelCapabilities
from ...ports.generator import DecodeInputs, HostResult, KVCacheLayer, PrefillInputs, Readback
from ...ports.mesh import Mesh
from ...ports.sampling import DeviceSampling
from .model_members import Call, ModelContractError, read_members
from .readback import DeferredReadback, HostReadback
from .sampling_wire import TTSamplingParams, to_wire

log = structlog.get_logger(__name__)


class ContractGenerator:
    """Implements ``Generator[torch.Tensor]`` for one model object on one mesh.

    ``trace_prefill`` and ``trace_decode`` are the operator's ``trace_mode``. Steps are submitted by one thread;
    a readback may be read by another.
    """

    def __init__(
        self,
        model: Any,
        mesh: Mesh,
        capabilities: ModelCapabilities,
        *,
        trace_prefill: bool = True,
        trace_decode: bool = True,
    ) -> None:
        self._members = read_members(model, capabilities)
        self._mesh = mesh
        self._capabilities = capabilities
        self._trace_prefill, self._trace_decode = trace_prefill, trace_decode
        self._kv_cache: Any = None
        self._wire: TTSamplingParams | None = None
        self._wire_rows = -1
        # A reload of sampling parameters commanded in a step that samples nothing on the device is still owed.
        self._sampling_owed = False
        self._counts = {
            "prefill_steps": 0,
            "decode_steps": 0,
            "reload_inputs": 0,
            "reload_page_table": 0,
            "reload_sampling_params": 0,
        }
        if not self._members.explicit_reloads:
            log.warning("legacy_decode_contract", model=self._members.owner, effect="reloads follow reset_batch alone")

    # -- memory and warm-up

    def allocate_kv_cache(self, layers: Sequence[KVCacheLayer]) -> None:
        if not layers:
            raise ModelContractError("no attention layer to allocate a KV cache for; check the model's KV cache spec")
        specs = [(layer.shape, _dtype(layer.dtype), layer.tensor) for layer in layers]
        if self._members.allocate_kv_cache_per_layer is not None:
            self._kv_cache = self._members.allocate_kv_cache_per_layer(specs)
            return
        alike = all((shape, dtype) == specs[0][:2] for shape, dtype, _ in specs)
        private = len({tensor for _, _, tensor in specs}) == len(specs)
        if not alike or not private or self._members.allocate_kv_cache is None:
            raise ModelContractError(
                f"{self._members.owner} allocates one shape for all layers and this model needs several; "
                "give the class allocate_kv_cache_per_layer"
            )
        self._kv_cache = self._members.allocate_kv_cache(specs[0][0], specs[0][1], len(specs))

    def warm_up_prefill(self, *, sample_on_device: bool, traced: bool) -> None:
        if self._members.warmup_model_prefill is not None:
            self._members.warmup_model_prefill(
                kv_cache=self._kv_cache, can_sample_on_device=sample_on_device, enable_trace=traced
            )

    def warm_up_decode(
        self, *, max_batch_size: int, blocks_per_row: int, sample_on_device: bool, traced: bool
    ) -> None:
        if self._members.warmup_model_decode is not None:
            self._members.warmup_model_decode(
                kv_cache=self._kv_cache,
                max_batch_size=max_batch_size,
                num_blocks=blocks_per_row,
                can_sample_on_device=sample_on_device,
                enable_trace=traced,
            )

    # -- steps

    def prefill(self, inputs: PrefillInputs[torch.Tensor]) -> Readback[torch.Tensor]:
        rows = len(inputs.slots)
        kwargs: dict[str, Any] = {
            "tokens": inputs.tokens,
            "page_table": inputs.page_table,
            "kv_cache": self._kv_cache,
            "enable_trace": self._trace_prefill,
            "prompt_lens": np.array(inputs.ends, dtype=np.int64),
            "start_pos": np.array(inputs.starts, dtype=np.int64),
            "empty_slots": list(inputs.slots),
        }
        if inputs.layer_page_tables is not None:
            kwargs["page_tables_per_layer"] = list(inputs.layer_page_tables)
        if inputs.sampling is not None:
            kwargs["sampling_params"] = to_wire(inputs.sampling)
        picked = self._ask_for_logits(kwargs, inputs.logits_rows, inputs.sampling)
        if self._capabilities.supports_async_prefill:
            kwargs["read_from_device"] = False
        out = self._members.prefill_forward(**kwargs)
        self._counts["prefill_steps"] += 1
        return self._readback(out, inputs.sampling is not None, picked, _count(kwargs, rows))

    def decode(self, inputs: DecodeInputs[torch.Tensor]) -> Readback[torch.Tensor]:
        reload, sampling = inputs.reload, inputs.sampling
        kwargs: dict[str, Any] = {
            "tokens": inputs.tokens,
            "start_pos": inputs.positions,
            "page_table": inputs.page_table,
            "kv_cache": self._kv_cache,
            "enable_trace": self._trace_decode,
            "read_from_device": not self._capabilities.supports_async_decode,
        }
        if inputs.layer_page_tables is not None:
            kwargs["page_tables_per_layer"] = inputs.layer_page_tables
        reload_sampling = reload.sampling_params or self._sampling_owed
        if sampling is not None:
            if reload_sampling or self._wire is None or self._wire_rows != len(sampling):
                self._wire, self._wire_rows = to_wire(sampling), len(sampling)
                reload_sampling = True
            kwargs["sampling_params"] = self._wire
        if self._members.explicit_reloads:
            kwargs["reload_inputs"] = reload.inputs
            kwargs["reload_page_table"] = reload.page_table
            kwargs["reload_sampling_params"] = reload_sampling and sampling is not None
            kwargs["reset_sampling_state"] = reload.reset_sampling_state
        elif sampling is not None:
            # The older form has one command for everything, and takes page tables and parameters every time.
            kwargs["reset_batch"] = reload.inputs
        picked = self._ask_for_logits(kwargs, inputs.logits_rows, sampling)
        out = self._members.decode_forward(**kwargs)
        # Only now has the model taken the commands (3.10).
        self._sampling_owed = reload_sampling and sampling is None
        counts = self._counts
        counts["decode_steps"] += 1
        counts["reload_inputs"] += reload.inputs
        counts["reload_page_table"] += reload.page_table
        counts["reload_sampling_params"] += reload_sampling and sampling is not None
        return self._readback(out, sampling is not None, picked, _count(kwargs, inputs.positions.shape[0]))

    def counters(self) -> dict[str, int]:
        return dict(self._counts)

    def _ask_for_logits(
        self, kwargs: dict[str, Any], logits_rows: Sequence[int] | None, sampling: Sequence[DeviceSampling] | None
    ) -> Sequence[int] | None:
        """Add ``logits_rows`` where the model takes it. Returns the rows left to pick on the host, or None."""
        if logits_rows is None or (not logits_rows and sampling is not None):
            return None
        if self._capabilities.supports_tokens_and_logits:
            kwargs["logits_rows"] = list(logits_rows)
            return None
        if sampling is not None:
            raise ModelContractError(
                f"{self._members.owner} returns tokens or logits, not both in one step; "
                "sample every row of the step in one place"
            )
        return logits_rows

    def _readback(
        self, out: Any, is_tokens: bool, picked: Sequence[int] | None, rows: int
    ) -> HostReadback | DeferredReadback:
        if _on_host(out):
            return HostReadback(_result(out, is_tokens, picked, rows))
        read, process = self._members.read_decode_output, self._members.process_decode_output_host
        if read is None or process is None:
            raise ModelContractError(
                f"{self._members.owner} returned a {type(out).__name__} and has no read_decode_output and "
                "process_decode_output_host; return host tensors or add both"
            )
        handle, events = read(out, async_read=True)
        finish: Call = process
        return DeferredReadback(
            self._mesh, events, lambda: _result(finish(handle, is_tokens=is_tokens), is_tokens, picked, rows)
        )


def _count(sent: dict[str, Any], rows: int) -> int:
    """How many tokens, or without sampling how many rows of logits, a step has to come back with."""
    return len(sent["logits_rows"]) if "logits_rows" in sent and "sampling_params" not in sent else rows


def _dtype(name: str) -> torch.dtype:
    dtype = getattr(torch, name, None)
    if not isinstance(dtype, torch.dtype):
        raise ModelContractError(f"{name!r} is not a torch dtype; name one as torch does, such as bfloat16")
    return dtype


def _on_host(out: Any) -> bool:
    if isinstance(out, tuple):
        return all(part is None or isinstance(part, torch.Tensor) for part in out)
    return isinstance(out, torch.Tensor)


def _result(out: Any, is_tokens: bool, picked: Sequence[int] | None, rows: int) -> HostResult[torch.Tensor]:
    """Bring what a model returned into the port's shapes: tokens int32 [rows], logits float32 [K, V]."""
    first, second = out if isinstance(out, tuple) else (out, None)
    if is_tokens:
        tokens: torch.Tensor = first
        if tokens is None or tokens.is_floating_point():
            came = None if tokens is None else tokens.dtype
            raise ModelContractError(
                f"a step that samples on the device came back with {came} for its tokens; return int32, one a row"
            )
        if tokens.numel() != rows:
            raise ModelContractError(f"a step of {rows} rows came back with {tokens.numel()} tokens; return one a row")
        if tokens.dim() != 1 or tokens.dtype != torch.int32:
            tokens = tokens.reshape(-1).to(torch.int32)
        return HostResult(tokens=tokens, logits=None if second is None else _flat(second))
    logits = _flat(first)
    if len(logits) < rows:
        raise ModelContractError(
            f"a step came back with {len(logits)} rows of logits where {rows} were asked for; return one a row"
        )
    if picked is not None:
        logits = logits[list(picked)]
    return HostResult(tokens=None, logits=logits)


def _flat(logits: torch.Tensor) -> torch.Tensor:
    """[K, *, V] -> float32 [K, V]: the last position counts (contract 3.3)."""
    if logits is None or logits.dim() not in (2, 3):
        shape = None if logits is None else list(logits.shape)
        raise ModelContractError(
            f"logits came back as {shape}; return [rows, vocabulary] or [rows, positions, vocabulary]"
        )
    return (logits[:, -1, :] if logits.dim() == 3 else logits).float()
