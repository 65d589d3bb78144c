"""Arrays of the device's shape that live as long as the engine (design, choice 4).

Host-side truth is kept per row: tokens, block ids, live widths. What goes over the wire is kept beside it and touched
only where the plan commands a reload, so that steady decode copies nothing. Everything past a row's live width is
zero, vLLM's null block: the device is handed full-width rows, and a stale id there once wrote into another request's
blocks (contract 8.26).
"""
from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ...ports.step import BlockIds

Ints = npt.NDArray[np.int32]


class StepBuffers:
    """``capacity`` rows, ``max_len`` tokens a row, ``widths[g]`` blocks a row in KV cache group g."""

    def __init__(self, *, capacity: int, max_len: int, widths: Sequence[int]) -> None:
        self.capacity = capacity
        self.max_len = max_len
        # One column beyond: an async overrun may write the token of a position that no step will read.
        self.tokens: Ints = np.zeros((capacity, max_len + 1), np.int32)
        """every token known of the row's request, by position"""
        self.epoch = np.zeros(capacity, np.int64)
        """counts a row's releases: a late token is applied only to the request it was computed for"""
        self._blocks: list[Ints] = [np.zeros((capacity, w), np.int32) for w in widths]
        self._live: list[Ints] = [np.zeros(capacity, np.int32) for _ in widths]
        self._wire_tokens: Ints = np.zeros((capacity, 1), np.int32)
        self._wire_positions: Ints = np.full(capacity, -1, np.int32)
        self._wire_blocks: list[Ints] = [np.zeros((capacity, w), np.int32) for w in widths]
        self._wire_width = [0] * len(widths)
        self._wire_active = np.zeros(capacity, np.bool_)
        # torch views of the same memory, made once.
        self.wire_tokens = torch.from_numpy(self._wire_tokens)
        self.wire_positions = torch.from_numpy(self._wire_positions)
        self.wire_blocks = [torch.from_numpy(b) for b in self._wire_blocks]

    # -- rows ----------------------------------------------------------------------------------------------------

    def release(self, row: int) -> None:
        self.epoch[row] += 1
        for blocks, live in zip(self._blocks, self._live, strict=True):
            blocks[row, : live[row]] = 0
            live[row] = 0

    def admit(self, row: int, token_ids: Sequence[int], blocks: BlockIds) -> None:
        known = len(token_ids)
        if known > self.max_len:
            raise ValueError(f"{known} tokens do not fit a row of {self.max_len}; admission should have refused them")
        self.tokens[row, :known] = token_ids
        self.append_blocks(row, blocks)

    def append_blocks(self, row: int, new: BlockIds) -> None:
        for blocks, live, ids in zip(self._blocks, self._live, new, strict=True):
            if ids:
                start = int(live[row])
                end = start + len(ids)
                if end > blocks.shape[1]:
                    raise ValueError(
                        f"row {row} would hold {end} blocks of {blocks.shape[1]}; the pool and the table disagree"
                    )
                blocks[row, start:end] = ids
                live[row] = end

    def write_tokens(self, rows: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], tokens: Ints) -> None:
        self.tokens[rows, positions] = tokens

    # -- the wire ------------------------------------------------------------------------------------------------

    def load_decode(self, rows: npt.NDArray[np.int64], starts: npt.NDArray[np.int64]) -> None:
        """Tokens, positions and page tables of the decoding rows; every other row neutral."""
        self._wire_tokens[:] = 0
        self._wire_positions[:] = -1
        self._wire_tokens[rows, 0] = self.tokens[rows, starts]
        self._wire_positions[rows] = starts
        self._wire_active[:] = False
        self._wire_active[rows] = True
        for g, (blocks, live, wire) in enumerate(zip(self._blocks, self._live, self._wire_blocks, strict=True)):
            width = int(live[rows].max())
            wire[:, : max(width, self._wire_width[g])] = 0
            wire[rows, :width] = blocks[rows, :width]
            self._wire_width[g] = width

    def load_grown(self, rows: Sequence[int]) -> None:
        """Page tables of active rows that got blocks since the last load."""
        for g, (blocks, live, wire) in enumerate(zip(self._blocks, self._live, self._wire_blocks, strict=True)):
            for row in rows:
                width = int(live[row])
                wire[row, :width] = blocks[row, :width]
                if width > self._wire_width[g]:
                    self._wire_width[g] = width

    def prefill_tokens(self, rows: npt.NDArray[np.int64], ends: npt.NDArray[np.int64]) -> torch.Tensor:
        """int32 [N, max(ends)]; zero beyond each row's end."""
        width = int(ends.max())
        tokens = self.tokens[rows, :width]
        tokens[np.arange(width) >= ends[:, None]] = 0
        return torch.from_numpy(tokens)

    def prefill_blocks(self, group: int, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """int32 [N, W]"""
        return torch.from_numpy(self._blocks[group][rows])

    def blocks_by_row(self, group: int, rows: npt.NDArray[np.int64]) -> torch.Tensor:
        """int32 [capacity, W], zero in other rows: the form of the per-layer tables in a prefill."""
        table = np.zeros_like(self._blocks[group])
        table[rows] = self._blocks[group][rows]
        return torch.from_numpy(table)
