"""The model on the device, as the step runner drives it."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, Protocol, TypeVar

import attrs

from .sampling import DeviceSampling
from .step import ReloadCommands

Array = TypeVar("Array")
"""int32 or float32 array of the adapter's choice (numpy or torch on the host)."""


@attrs.frozen(kw_only=True)
class KVCacheLayer:
    """One attention layer's cache, per lane. ``tensor`` names the buffer: equal names share one."""

    shape: tuple[int, int, int, int]
    """(num_blocks, kv_heads per device, block_size, head_size)"""
    dtype: str
    """torch's name without the prefix: "float32", "bfloat16", ..."""
    tensor: int


@attrs.frozen(kw_only=True)
class PrefillInputs(Generic[Array]):
    """N rows, S the largest chunk end of them, W blocks a row."""

    tokens: Array
    """int32 [N, S], from position 0"""
    page_table: Array
    """int32 [N, W]; zeros beyond the live blocks"""
    layer_page_tables: Sequence[Array] | None
    """one int32 [capacity, W] a layer where there is more than one KV group, else None"""
    starts: Sequence[int]
    """N: tokens already computed"""
    ends: Sequence[int]
    """N: one past the last position of this chunk"""
    slots: Sequence[int]
    """N: global device slot of each row"""
    sampling: Sequence[DeviceSampling] | None
    """N, or None: nothing is sampled on the device"""
    logits_rows: Sequence[int] | None
    """indices into N whose logits are wanted. None: all where ``sampling`` is None, else none"""


@attrs.frozen(kw_only=True)
class DecodeInputs(Generic[Array]):
    """B device rows: the batch shape."""

    tokens: Array
    """int32 [B, 1]; 0 in inactive rows; authoritative only when ``reload.inputs``"""
    positions: Array
    """int32 [B]; -1 in inactive rows; authoritative only when ``reload.inputs``"""
    page_table: Array
    """int32 [B, W]; zeros in inactive rows and beyond the live blocks"""
    layer_page_tables: Sequence[Array] | None
    sampling: Sequence[DeviceSampling] | None
    """B, or None: nothing is sampled on the device"""
    logits_rows: Sequence[int] | None
    """device rows whose logits are wanted. None: all where ``sampling`` is None, else none"""
    reload: ReloadCommands


@attrs.frozen(kw_only=True)
class HostResult(Generic[Array]):
    """What came back."""

    tokens: Array | None
    """int32 [N or B], device-sampled; None where nothing was"""
    logits: Array | None
    """float32 [len(rows asked for), vocabulary]; None where none were asked for"""


class Readback(Protocol[Array]):
    """A submitted step. ``read`` waits, returns the result, and may be called again for the same result;
    it raises what the device raised. Reading changes nothing on the device."""

    def read(self) -> HostResult[Array]: ...

    def done(self) -> bool: ...


class Generator(Protocol[Array]):
    """One model on one mesh, all lanes."""

    def allocate_kv_cache(self, layers: Sequence[KVCacheLayer]) -> None: ...

    def warm_up_prefill(self, *, sample_on_device: bool, traced: bool) -> None: ...

    def warm_up_decode(
        self, *, max_batch_size: int, blocks_per_row: int, sample_on_device: bool, traced: bool
    ) -> None: ...

    def prefill(self, inputs: PrefillInputs[Array]) -> Readback[Array]: ...

    def decode(self, inputs: DecodeInputs[Array]) -> Readback[Array]: ...

    def counters(self) -> dict[str, int]:
        """Plain counts for the telemetry line (steps, reloads, ...); {} where the device keeps none."""
        ...
