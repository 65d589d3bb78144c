"""One device program of the reference model: a batch of rows, its resident inputs, its trace, its events.

Queue 0 computes, queue 1 moves data. What one of them needs of the other is said by events, in both directions: inputs
are written after the run that still reads the old ones, and outputs are read before the run that overwrites them.
"""

from __future__ import annotations

import torch
import ttnn

from .reference_tables import Geometry, Tables
from .reference_weights import VOCAB

COMPUTE, IO = 0, 1
"""command queues"""


class DeviceTables:
    """One lane's weights, tables and KV stand-in on its submesh, the same on every chip of it.

    ``cache`` bfloat16 [blocks * block_size, VOCAB], one row a position of a block: zeros at first.
    """

    def __init__(self, device: ttnn.MeshDevice, geometry: Geometry, tables: Tables) -> None:
        self.device, self.geometry = device, geometry
        self._everywhere = ttnn.replicate_tensor_to_mesh_mapper(device)
        row_major, tile = ttnn.ROW_MAJOR_LAYOUT, ttnn.TILE_LAYOUT
        self.page = self.put(tables.page, row_major)
        self.offset = self.put(tables.offset, row_major)
        self.following = self.put(tables.following, row_major)
        self.attend = self.put(tables.attend, row_major)
        self.block = self.put(tables.block, row_major)
        self.token = self.put(tables.token, row_major)
        self.ranks = self.put(tables.ranks, row_major)
        self.minus = self.put(tables.minus, tile)
        self.votes = self.put(tables.votes, tile)
        self.cache = self.put(torch.zeros(geometry.blocks * geometry.block_size, VOCAB), tile)

    def put(self, values: torch.Tensor, layout: ttnn.Layout) -> ttnn.Tensor:
        """``values`` (float32: as bfloat16; int32: as uint32) on every chip."""
        own, dtype = _as_the_device_has_it(values)
        return ttnn.from_torch(own, dtype, layout=layout, device=self.device, mesh_mapper=self._everywhere)

    def host(self, values: torch.Tensor) -> ttnn.Tensor:
        """int32 ``values`` on the host, one copy a chip, ready to be written over a device tensor."""
        own, dtype = _as_the_device_has_it(values)
        return ttnn.from_torch(own, dtype, layout=ttnn.ROW_MAJOR_LAYOUT, mesh_mapper=self._everywhere)


class ReferenceProgram:
    """``rows`` (whole tiles) of one lane. ``advances``: tokens and positions stay resident and move on by themselves.

    ``tokens`` and ``positions`` are uint32 [1, rows], ``pages`` uint32 [rows, width]; ``picked`` uint32 [1, rows] are
    the tokens that follow (the same buffer as ``tokens`` where it advances), ``logits`` bfloat16 [1, rows, VOCAB].
    """

    def __init__(self, tables: DeviceTables, rows: int, *, advances: bool) -> None:
        self._tables, self._rows, self._advances = tables, rows, advances
        self._device = tables.device
        geometry = tables.geometry
        nothing = torch.zeros(1, rows, dtype=torch.int32)
        row_major = ttnn.ROW_MAJOR_LAYOUT
        # Everything that outlives a run is allocated before any trace is captured: what is allocated later may lie
        # where a trace puts its intermediates.
        self._tokens = tables.put(nothing, row_major)
        self._positions = tables.put(torch.full((1, rows), geometry.nowhere, dtype=torch.int32), row_major)
        self._pages = tables.put(torch.zeros(rows, geometry.width, dtype=torch.int32), row_major)
        self._picked = self._tokens if advances else tables.put(nothing, row_major)
        self._logits = tables.put(torch.zeros(1, rows, VOCAB), ttnn.TILE_LAYOUT)
        self._trace: ttnn.MeshTraceId | None = None
        self._compiled = False
        self._ran: ttnn.MeshEvent | None = None
        self.runs = 0
        """how many times it ran; an output belongs to one of them"""

    # -- warm-up

    def compile(self) -> None:
        """Run once with rows that stand nowhere, so that every kernel is on the device. Nothing is written."""
        if not self._compiled:
            self._step()
            self._compiled = True
            ttnn.synchronize_device(self._device)

    def capture(self) -> None:
        """Capture the run as a trace; what it computes meanwhile is nothing."""
        if self._trace is None:
            trace = ttnn.begin_trace_capture(self._device, cq_id=COMPUTE)
            self._step()
            ttnn.end_trace_capture(self._device, trace, cq_id=COMPUTE)
            ttnn.synchronize_device(self._device)
            self._trace = trace

    # -- a step

    def load(
        self,
        *,
        tokens: torch.Tensor | None = None,
        positions: torch.Tensor | None = None,
        pages: torch.Tensor | None = None,
    ) -> None:
        """Write what is given over the resident inputs, on the second queue, before the next run."""
        if self._ran is not None:
            ttnn.wait_for_event(IO, mesh_event=self._ran)
        for values, resident in ((tokens, self._tokens), (positions, self._positions), (pages, self._pages)):
            if values is not None:
                ttnn.copy_host_to_device_tensor(self._tables.host(values), resident, cq_id=IO)
        ttnn.wait_for_event(COMPUTE, mesh_event=ttnn.record_event(self._device, IO))

    def run(self, *, traced: bool) -> int:
        """Submit one run; returns its number. Waits for nothing."""
        if traced:
            if self._trace is None:
                self.capture()
            assert self._trace is not None
            ttnn.execute_trace(self._device, self._trace, cq_id=COMPUTE, blocking=False)
        else:
            self._step()
        self._ran = ttnn.record_event(self._device, COMPUTE)
        self.runs += 1
        return self.runs

    def read(self, *, logits: bool, tokens: bool) -> tuple[ttnn.Tensor | None, ttnn.Tensor | None, ttnn.MeshEvent]:
        """Submit the reading of the last run's outputs, on the second queue.

        Returns (tokens, logits, event): host tensors that hold their values once the event has been synchronized.
        """
        if self._ran is None:
            raise RuntimeError("nothing has run yet; run the program before reading it")
        ttnn.wait_for_event(IO, mesh_event=self._ran)
        picked = ttnn.from_device(self._picked, blocking=False, queue_id=IO) if tokens else None
        scores = ttnn.from_device(self._logits, blocking=False, queue_id=IO) if logits else None
        read = ttnn.record_event(self._device, IO)
        ttnn.wait_for_event(COMPUTE, mesh_event=read)
        return picked, scores, read

    # -- the graph

    def _step(self) -> None:
        tables, geometry, rows = self._tables, self._tables.geometry, self._rows
        blocks, size = geometry.blocks, geometry.block_size
        # Where each row writes: [rows, blocks * size], a single one, or none for a row that stands nowhere.
        page = _tile(ttnn.reshape(ttnn.embedding(self._positions, tables.page), (rows, 1, geometry.width)))
        block = ttnn.matmul(page, _tile(ttnn.embedding(self._pages, tables.block)))
        offset = _tile(ttnn.reshape(ttnn.embedding(self._positions, tables.offset), (rows, 1, size)))
        cell = ttnn.reshape(_row_major(ttnn.matmul(block, offset, transpose_a=True)), (rows, blocks * size))
        cell = _tile(cell)
        # Write: what the row's token is, in place of what stood there.
        token = _tile(ttnn.reshape(ttnn.embedding(self._tokens, tables.token), (rows, VOCAB)))
        change = ttnn.add(token, ttnn.matmul(ttnn.matmul(cell, tables.cache), tables.minus))
        ttnn.add(tables.cache, ttnn.matmul(cell, change, transpose_a=True), output_tensor=tables.cache)
        # Read: every page of the row through its table, then the positions that vote.
        paged = ttnn.reshape(_row_major(tables.cache), (blocks, size * VOCAB))
        context = ttnn.embedding(self._pages, paged)
        context = _tile(ttnn.reshape(context, (rows, geometry.width * size, VOCAB)))
        attend = ttnn.embedding(self._positions, tables.attend)
        attend = _tile(ttnn.reshape(attend, (rows, 1, geometry.width * size)))
        voters = _tile(ttnn.reshape(_row_major(ttnn.matmul(attend, context)), (1, rows, VOCAB)))
        # Choose.
        ranks = _tile(ttnn.embedding(self._tokens, tables.ranks))
        ttnn.add(ranks, ttnn.matmul(voters, tables.votes), output_tensor=self._logits)
        ttnn.argmax(_row_major(self._logits), dim=2, output_tensor=self._picked)
        if self._advances:
            ttnn.argmax(ttnn.embedding(self._positions, tables.following), dim=2, output_tensor=self._positions)


def _tile(tensor: ttnn.Tensor) -> ttnn.Tensor:
    return ttnn.to_layout(tensor, ttnn.TILE_LAYOUT)


def _row_major(tensor: ttnn.Tensor) -> ttnn.Tensor:
    return ttnn.to_layout(tensor, ttnn.ROW_MAJOR_LAYOUT)


def _as_the_device_has_it(values: torch.Tensor) -> tuple[torch.Tensor, ttnn.DataType]:
    """Converted here: ttnn converts on the device, with a kernel, and a kernel more is a thing more that may fail."""
    if values.dtype == torch.float32:
        return values.to(torch.bfloat16), ttnn.bfloat16
    return values.to(torch.uint32), ttnn.uint32
