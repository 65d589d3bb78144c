"""The reference model's tables as tensors: how embedding, matmul, add and argmax alone move data by an index.

A table with one row a position turns an index into whatever that row holds: the one-hot of its page, of its offset in
the page, of the next position, or the weights of the positions that vote. The last row, :attr:`Geometry.nowhere`, is
where a row that does not run stands: its one-hots are empty, so it writes nothing and reads nothing.
"""

from __future__ import annotations

import attrs
import torch

from .reference_weights import VOCAB, VOTE, ReferenceWeights, heads

TILE = 32
"""Side of a ttnn tile: every side of a tensor is a multiple of it, or 1 and then padded with zeros."""


def tiled(count: int) -> int:
    """``count`` rounded up to whole tiles."""
    return -(-count // TILE) * TILE


@attrs.frozen(kw_only=True)
class Geometry:
    """Sizes of one lane."""

    rows: int
    """decode rows"""
    max_len: int
    """positions a request may have"""
    num_blocks: int
    block_size: int

    def __attrs_post_init__(self) -> None:
        if self.block_size % TILE:
            raise ValueError(
                f"block_size {self.block_size} is no multiple of {TILE}, a tile's side; use --block-size {TILE} or 64"
            )

    @property
    def decode_rows(self) -> int:
        return tiled(self.rows)

    @property
    def blocks(self) -> int:
        return tiled(self.num_blocks)

    @property
    def width(self) -> int:
        """blocks a row in the device's page table"""
        return tiled(-(-self.max_len // self.block_size))

    @property
    def nowhere(self) -> int:
        """the position of a row that does not run"""
        return self.max_len


@attrs.frozen(kw_only=True, eq=False)
class Tables:
    """bfloat16 values as float32 tensors; ``P`` is ``max_len + 1``."""

    page: torch.Tensor
    """[P, width]: one-hot of the position's page within its row"""
    offset: torch.Tensor
    """[P, block_size]: one-hot of the position within its page"""
    following: torch.Tensor
    """[P, tiled(P)]: one-hot of the next position; nowhere follows nowhere"""
    attend: torch.Tensor
    """[P, width * block_size]: how often each position votes"""
    block: torch.Tensor
    """[blocks, blocks]: one-hot of a block id"""
    token: torch.Tensor
    """[VOCAB, VOCAB]: one-hot of a token"""
    minus: torch.Tensor
    """[VOCAB, VOCAB]: minus one times"""
    ranks: torch.Tensor
    """[VOCAB, VOCAB]"""
    votes: torch.Tensor
    """[VOCAB, VOCAB], weighed"""


def make_tables(weights: ReferenceWeights, geometry: Geometry) -> Tables:
    """Tables for one lane."""
    positions, block_size = geometry.max_len, geometry.block_size
    page = torch.zeros(positions + 1, geometry.width)
    offset = torch.zeros(positions + 1, block_size)
    following = torch.zeros(positions + 1, tiled(positions + 1))
    attend = torch.zeros(positions + 1, geometry.width * block_size)
    for position in range(positions):
        page[position, position // block_size] = 1
        offset[position, position % block_size] = 1
        following[position, position + 1] = 1
        for head in heads(position):
            attend[position, head] += 1
    following[positions, positions] = 1
    return Tables(
        page=page,
        offset=offset,
        following=following,
        attend=attend,
        block=torch.eye(geometry.blocks),
        token=torch.eye(VOCAB),
        minus=-torch.eye(VOCAB),
        ranks=torch.tensor(weights.ranks, dtype=torch.float32),
        votes=torch.tensor(weights.votes, dtype=torch.float32) * VOTE,
    )
