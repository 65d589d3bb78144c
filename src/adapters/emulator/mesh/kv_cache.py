"""The paged KV cache of all lanes, and the ledger of what each position holds.

Each lane has its own pool of ``num_blocks`` blocks; lane k's block b is row ``k * num_blocks + b`` of one
buffer, so that a step over all lanes gathers its pages at once. Block 0 of a lane is the null block: nothing
is ever written there.

Memory is committed by the operating system as pages are first written (numpy's zeros are calloc'd), so a
pool much larger than what is used costs address space alone. Zero, not garbage, stands in what was never
written, so that masked positions stay finite; the ledger is what catches a real read of them.
"""
from __future__ import annotations

from collections.abc import Sequence

import attrs
import numpy as np
import numpy.typing as npt
import torch

from .fingerprints import Prints
from .rules import Rule, RuleBroken

_STORAGE = {torch.float32: np.float32, torch.float16: np.float16, torch.bfloat16: np.uint16, torch.float64: np.float64}


@attrs.frozen(kw_only=True)
class LayerHeads:
    """What one attention layer writes a position."""

    kv_heads: int
    key_size: int
    value_size: int


class PagedKVCache:
    """``buffers[i]`` names layer i's storage: layers with equal numbers share one (their blocks differ)."""

    def __init__(
        self,
        *,
        lanes: int,
        num_blocks: int,
        block_size: int,
        layers: Sequence[LayerHeads],
        dtype: torch.dtype,
        buffers: Sequence[int] | None = None,
    ) -> None:
        self.lanes, self.num_blocks, self.block_size = lanes, num_blocks, block_size
        self.ledger: Prints = np.zeros((lanes * num_blocks, block_size), np.uint64)
        """the fingerprint of each position; 0: never written"""
        named = list(range(len(layers))) if buffers is None else list(buffers)
        made: dict[int, tuple[LayerHeads, torch.Tensor, torch.Tensor]] = {}
        for heads, name in zip(layers, named, strict=True):
            if name in made and made[name][0] != heads:
                raise RuleBroken(Rule.KV_SHAPE, f"buffer {name} is shared by layers of different shapes")
            if name not in made:
                made[name] = (
                    heads,
                    self._buffer(heads, heads.key_size, dtype),
                    self._buffer(heads, heads.value_size, dtype),
                )
        self._keys = [made[name][1] for name in named]
        self._values = [made[name][2] for name in named]

    def _buffer(self, heads: LayerHeads, size: int, dtype: torch.dtype) -> torch.Tensor:
        if dtype not in _STORAGE:
            kept = ", ".join(str(known) for known in _STORAGE)
            raise RuleBroken(Rule.KV_SHAPE, f"a {dtype} cache; the emulator keeps {kept}")
        shape = (self.lanes * self.num_blocks, self.block_size, heads.kv_heads, size)
        return torch.from_numpy(np.zeros(shape, _STORAGE[dtype])).view(dtype)

    def pages(self, lane: int, table: npt.NDArray[np.int32]) -> npt.NDArray[np.int64]:
        """Buffer rows of a lane's block ids (any shape). Ids are trusted: the host side checks them."""
        return table.astype(np.int64) + lane * self.num_blocks

    def write(self, layer: int, places: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> None:
        """Store ``key`` [T, kv_heads, key_size] and ``value`` at flat places int64 [T] (page * block + offset)."""
        keys, values = self._keys[layer], self._values[layer]
        keys.view(-1, *keys.shape[2:]).index_copy_(0, places, key.to(keys.dtype))
        values.view(-1, *values.shape[2:]).index_copy_(0, places, value.to(values.dtype))

    def gather(self, layer: int, pages: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Keys and values of whole pages int64 [..., P]: each [..., P * block_size, kv_heads, size]."""
        flat = pages.reshape(-1)
        shape = (*pages.shape[:-1], pages.shape[-1] * self.block_size)
        keys = self._keys[layer].index_select(0, flat)
        values = self._values[layer].index_select(0, flat)
        return keys.view(*shape, *keys.shape[2:]), values.view(*shape, *values.shape[2:])

    def record(self, pages: npt.NDArray[np.int64], positions: npt.NDArray[np.int64], prints: Prints) -> None:
        """Note what ``positions`` now hold, on the pages they fall on (all int64/uint64 [T])."""
        self.ledger[pages, positions % self.block_size] = prints

    def verify(self, pages: npt.NDArray[np.int64], first: int, end: int, expected: Prints, who: str) -> None:
        """Raise unless positions [first, end) hold ``expected`` (uint64 [end], from position 0).

        ``pages`` int64 [>= ceil(end / block)] are a row's buffer rows from position 0; ``who`` names the row.
        """
        if end <= first:
            return
        head = first // self.block_size
        held = self.ledger[pages[head : -(-end // self.block_size)]].reshape(-1)
        held = held[first - head * self.block_size : end - head * self.block_size]
        wanted = expected[first:end]
        if np.array_equal(held, wanted):
            return
        wrong = int(np.argmax(held != wanted))
        position = first + wrong
        block = int(pages[position // self.block_size]) % self.num_blocks
        where = f"{who}, position {position}, block {block}"
        if held[wrong] == 0:
            raise RuleBroken(Rule.UNWRITTEN_READ, where)
        raise RuleBroken(Rule.STALE_BLOCK, f"{where} holds the KV of other tokens")
