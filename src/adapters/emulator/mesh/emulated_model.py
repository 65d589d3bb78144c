"""A tt-metal-style model object on the emulated mesh: what the generator contract calls, up to the decode form."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import attrs
import numpy as np
import torch

from ....ports.step import Phase
from .checkpoint import LoadedModel, load_model
from .device import EmulatedMesh
from .kv_cache import PagedKVCache
from .outputs import DeviceOutput, HostCopy, HostOutput
from .program import DeviceProgram
from .rules import Rule, RuleBroken
from .sampler import MAX_CANDIDATES, RowSampling
from .shapes import ProgramCache, Shape, padded_length, prefill_lengths
from .slots import Geometry, HostTables, Ints, SlotBook
from .wire import WireSampling, read_sampling

DEFAULT_MAX_SEQ_LEN = 131072
MAX_TOKENS_ALL_USERS = 131072


class EmulatedModelError(ValueError):
    """The model cannot be set up as asked."""


@attrs.define(kw_only=True, eq=False)
class EmulatedModel:
    """Everything of an emulated model except the arguments of its decode.

    Submitting is for one thread; outputs may be read from another.
    """

    mesh: EmulatedMesh
    loaded: LoadedModel
    capacity: int
    lanes: int
    max_seq_len: int
    _programs: ProgramCache = attrs.field(factory=ProgramCache, init=False)
    _book: SlotBook | None = attrs.field(default=None, init=False)
    _program: DeviceProgram | None = attrs.field(default=None, init=False)
    _cache: PagedKVCache | None = attrs.field(default=None, init=False)
    _last_wire: WireSampling | None = attrs.field(default=None, init=False)
    _last_sampling: RowSampling | None = attrs.field(default=None, init=False)

    @classmethod
    def load(
        cls, hf_config: Any, mesh: object, *, capacity: int, lanes: int, lane_counts: Sequence[int], max_seq_len: int
    ) -> EmulatedModel:
        """Check the topology, then load the checkpoint that ``hf_config`` names."""
        if not isinstance(mesh, EmulatedMesh):
            raise EmulatedModelError(
                f"the emulated model was given a {type(mesh).__name__} as its mesh; set STEPSHAPE_TT_DEVICE=emulated"
            )
        if lanes not in lane_counts:
            allowed = ", ".join(str(count) for count in lane_counts)
            raise RuleBroken(Rule.LANES, f"{lanes} lanes on {mesh.shape[0]}x{mesh.shape[1]} chips, allowed: {allowed}")
        if capacity < 1 or capacity % lanes:
            raise RuleBroken(Rule.LANES, f"a batch of {capacity} rows over {lanes} lanes")
        return cls(mesh=mesh, loaded=load_model(hf_config), capacity=capacity, lanes=lanes, max_seq_len=max_seq_len)

    # -- KV cache (contract 3.2)

    def allocate(self, specs: Sequence[tuple[tuple[int, ...], torch.dtype, int]]) -> PagedKVCache:
        """One (shape, dtype, buffer) a layer. The pool of every lane has all ``shape[0]`` blocks."""
        layers = self.loaded.layers
        if len(specs) != len(layers):
            raise RuleBroken(Rule.KV_SHAPE, f"{len(specs)} layers, {self.loaded.name} has {len(layers)}")
        chips = max(self.mesh.num_devices // self.lanes, 1)
        first_shape, dtype, _ = specs[0]
        for index, ((shape, layer_dtype, _), layer) in enumerate(zip(specs, layers, strict=True)):
            heads = layer.heads.kv_heads // min(chips, layer.heads.kv_heads)
            wanted = (first_shape[0], heads, first_shape[2], layer.heads.key_size)
            if tuple(shape) != wanted or layer_dtype != dtype:
                asked = f"layer {index} asks for {tuple(shape)} {layer_dtype}"
                raise RuleBroken(Rule.KV_SHAPE, f"{asked}, needs {wanted} {dtype}")
        num_blocks, block_size = first_shape[0], first_shape[2]
        if num_blocks < 2 or block_size < 1:
            raise RuleBroken(Rule.KV_SHAPE, f"{num_blocks} blocks of {block_size}; block 0 is the null block")
        geometry = Geometry(
            capacity=self.capacity,
            lanes=self.lanes,
            num_blocks=num_blocks,
            block_size=block_size,
            max_seq_len=self.max_seq_len,
            windows=tuple(layer.window for layer in layers),
        )
        self._cache = PagedKVCache(
            lanes=self.lanes,
            num_blocks=num_blocks,
            block_size=block_size,
            layers=[layer.heads for layer in layers],
            dtype=dtype,
            buffers=[buffer for _, _, buffer in specs],
        )
        self._book = SlotBook(geometry)
        self._program = DeviceProgram(self.loaded, geometry, self._cache, self.mesh.seed)
        return self._cache

    # -- warm-up (contract 3.7): shapes are recorded, nothing is computed

    def warm_up_prefill(self, *, sampled: bool, traced: bool) -> None:
        self._programs.warm_up(
            Shape("prefill", (length,), sampled, traced) for length in prefill_lengths(self.max_seq_len)
        )

    def warm_up_decode(self, *, batch: int, blocks_per_row: int, sampled: bool, traced: bool) -> None:
        if batch > self.capacity:
            raise RuleBroken(Rule.INPUT_SHAPE, f"a decode batch of {batch} rows, the model has {self.capacity}")
        self._programs.warm_up([Shape("decode", (batch, blocks_per_row), sampled, traced)])

    # -- steps

    def book(self, kv_cache: object) -> SlotBook:
        """The slots, once ``kv_cache`` is seen to be the one that was allocated."""
        if self._book is None or kv_cache is not self._cache:
            raise RuleBroken(Rule.KV_SHAPE, "the step's kv_cache is not the one this model allocated")
        return self._book

    def prefill(
        self,
        *,
        tokens: torch.Tensor,
        page_table: torch.Tensor,
        page_tables_per_layer: Sequence[torch.Tensor] | None,
        starts: Sequence[int],
        ends: Sequence[int],
        slots: Sequence[int],
        kv_cache: object,
        wire: WireSampling | None,
        logits_rows: Sequence[int] | None,
        traced: bool,
    ) -> DeviceOutput:
        book = self.book(kv_cache)
        rows = _require_matrix("tokens", tokens)[0]
        if page_tables_per_layer is None:
            tables = self.tables(page_table, None, rows)
        elif min(slots, default=-1) < 0 or max(slots) >= self.capacity:
            raise RuleBroken(Rule.WRONG_SLOT, f"slots {list(slots)} of {self.capacity}")
        else:
            # Per-layer tables have the device's rows: a prefill's are found by slot.
            tables = self.tables(page_table, page_tables_per_layer, self.capacity).at(slots)
        ladder = prefill_lengths(self.max_seq_len)
        sampling = None if wire is None else self.sampling(wire, rows)
        for start, end in zip(starts, ends, strict=False):
            shape = Shape("prefill", (padded_length(max(end - start, 1), ladder),), sampling is not None, traced)
            self._programs.require(shape, page_table.shape[1])
        command = book.prefill(
            tokens=tokens.numpy().astype(np.int64),
            tables=copied(tables),
            starts=starts,
            ends=ends,
            slots=slots,
            sampling=sampling,
            logits_rows=_rows(logits_rows, rows),
        )
        program = self._require_program()
        computed = sum(ends) - sum(starts)
        return self._submit(lambda: program.prefill(command), Phase.PREFILL, rows, computed)

    def require_decode_shape(
        self, tokens: torch.Tensor, positions: torch.Tensor, page_table: torch.Tensor, *, sampled: bool, traced: bool
    ) -> None:
        batch, width = _require_matrix("page_table", page_table)
        if tuple(tokens.shape) != (batch, 1) or tuple(positions.shape) != (batch,):
            raise RuleBroken(
                Rule.INPUT_SHAPE,
                f"tokens {tuple(tokens.shape)}, start_pos {tuple(positions.shape)}, page_table {(batch, width)}",
            )
        if batch > self.capacity:
            raise RuleBroken(Rule.INPUT_SHAPE, f"a decode batch of {batch} rows, the model has {self.capacity}")
        if self.lanes > 1 and batch != self.capacity:
            raise RuleBroken(Rule.INPUT_SHAPE, f"a decode of {batch} rows, {self.lanes} lanes have {self.capacity}")
        self._programs.require(Shape("decode", (batch, width), sampled, traced), width)

    def decode(
        self, book: SlotBook, *, tokens: Ints | None, sampling: RowSampling | None, logits_rows: Sequence[int] | None
    ) -> DeviceOutput:
        """Submit a decode of what ``book`` has resident."""
        rows = None if logits_rows is None else tuple(logits_rows)
        command = book.decode(tokens=tokens, sampling=sampling, logits_rows=rows)
        program = self._require_program()
        return self._submit(lambda: program.decode(command), Phase.DECODE, len(command.rows), len(command.rows))

    def sampling(self, wire: WireSampling, rows: int) -> RowSampling:
        """Checked parameters; the same wire object is read once."""
        if wire is self._last_wire and self._last_sampling is not None and len(self._last_sampling.seeds) == rows:
            return self._last_sampling
        self._last_sampling = read_sampling(
            wire, rows, vocab_size=self.loaded.vocab_size, max_top_k=MAX_CANDIDATES
        )
        self._last_wire = wire
        return self._last_sampling

    def tables(
        self, page_table: torch.Tensor, per_layer: Sequence[torch.Tensor] | None, rows: int
    ) -> HostTables:
        """Views of the host's page tables, the first ``rows`` rows, one of each distinct tensor."""
        layers = self.loaded.layers
        given = [page_table] * len(layers) if per_layer is None else list(per_layer)
        if len(given) != len(layers):
            raise RuleBroken(Rule.INPUT_SHAPE, f"{len(given)} per-layer page tables for {len(layers)} layers")
        distinct: dict[int, int] = {}
        tensors: list[torch.Tensor] = []
        for table in given:
            if table.data_ptr() not in distinct:
                distinct[table.data_ptr()] = len(tensors)
                tensors.append(table)
            if table.dtype != torch.int32 or table.dim() != 2 or len(table) < rows:
                raise RuleBroken(Rule.INPUT_SHAPE, f"a page table is {tuple(table.shape)} {table.dtype}, rows {rows}")
        of_layer = tuple(distinct[table.data_ptr()] for table in given)
        windows: list[int | None] = []
        for number in range(len(tensors)):
            seen = [layer.window for layer, table in zip(layers, of_layer, strict=True) if table == number]
            longest = [window for window in seen if window is not None]
            windows.append(max(longest) if len(longest) == len(seen) else None)
        return HostTables(
            tables=tuple(tensor[:rows].numpy() for tensor in tensors), of_layer=of_layer, windows=tuple(windows)
        )

    def _require_program(self) -> DeviceProgram:
        if self._program is None:
            raise RuleBroken(Rule.KV_SHAPE, "a step came before allocate_kv_cache")
        return self._program

    def _submit(self, work: Any, phase: Phase, rows: int, tokens: int) -> DeviceOutput:
        event = self.mesh.submit(work, phase=phase, rows=rows, tokens=tokens)
        return DeviceOutput(event)


def copied(tables: HostTables) -> HostTables:
    """The same tables in memory of the device's own."""
    return attrs.evolve(tables, tables=tuple(table.copy() for table in tables.tables))


def read_output(out: object, *, async_read: bool) -> HostOutput | tuple[HostCopy, list[Any]]:
    """``read_decode_output`` of contract 3.5."""
    if not isinstance(out, DeviceOutput):
        raise TypeError(f"{type(out).__name__} is no output of the emulated mesh; pass what decode_forward returned")
    return (HostCopy(out.event), [out.event]) if async_read else out.wait()


def process_output(out: object, *, is_tokens: bool) -> HostOutput:
    """``process_decode_output_host`` of contract 3.5; a device handle is waited for."""
    if isinstance(out, HostCopy):
        host = out.take()
    elif isinstance(out, DeviceOutput):
        host = out.wait()
    else:
        raise TypeError(f"{type(out).__name__} is no output of the mesh; pass what read_decode_output returned")
    tokens = host[0] if isinstance(host, tuple) else host
    if is_tokens == tokens.is_floating_point():
        raise RuleBroken(Rule.INPUT_SHAPE, f"is_tokens={is_tokens} and the step returned {tokens.dtype}")
    return host


def _require_matrix(name: str, tensor: torch.Tensor) -> tuple[int, int]:
    if tensor.dtype != torch.int32 or tensor.dim() != 2:
        raise RuleBroken(Rule.INPUT_SHAPE, f"{name} is {tuple(tensor.shape)} {tensor.dtype}, not int32 of two axes")
    return tensor.shape[0], tensor.shape[1]


def _rows(logits_rows: Sequence[int] | None, rows: int) -> tuple[int, ...] | None:
    if logits_rows is None:
        return None
    if any(not 0 <= row < rows for row in logits_rows):
        raise RuleBroken(Rule.INPUT_SHAPE, f"logits of rows {list(logits_rows)} of {rows}")
    return tuple(logits_rows)
