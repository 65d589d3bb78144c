"""Rotary embedding as a 2x2 rotation per pair of lanes (spyre contract 2.3).

Rotate-half needs a negation and two slices at an offset, which the device does not lower. The rotation of the pair
(x_i, x_{i+half}) by one position's angle is a 2x2 matrix; the cache holds it for every position.
"""

from __future__ import annotations

import torch
from torch import Tensor


def rotation_cache(cos_sin: Tensor, head_size: int) -> Tensor:
    """[P + 1, 2, 2, head_size / 2] from ``cos_sin`` [P, rotary_dim], cosines first, as vLLM computes it.

    ``rotary_dim`` below ``head_size`` is a padded head: its further pairs get a zero matrix, and their lanes are zero.
    The last row belongs to no position: a gather of every row of its source faults on the device (torch-spyre#4033),
    and a step may well have as many tokens as the model has positions.
    """
    cos, sin = cos_sin.chunk(2, dim=-1)
    positions, pairs = cos.shape
    cache = cos_sin.new_zeros(positions + 1, 2, 2, head_size // 2)
    cache[:positions, 0, 0, :pairs] = cos
    cache[:positions, 0, 1, :pairs] = -sin
    cache[:positions, 1, 0, :pairs] = sin
    cache[:positions, 1, 1, :pairs] = cos
    return cache


def rotations(cache: Tensor, positions: Tensor) -> Tensor:
    """The matrices [T, 2, 2, D/2] of int64 ``positions`` [T]."""
    return torch.index_select(cache, 0, positions)


def rotate(x: Tensor, matrices: Tensor) -> Tensor:
    """``x`` [T, H * D] turned by ``matrices`` [T, 2, 2, D/2]; the same shape."""
    half = matrices.shape[-1]
    pairs = x.reshape(x.shape[0], -1, 2, half)
    # out[t,h,i,:] = sum over j of matrices[t,i,j,:] * pairs[t,h,j,:], as two products: no five-dimensional tensor.
    first = matrices[:, :, 0, :].unsqueeze(1) * pairs[:, :, 0:1, :]
    second = matrices[:, :, 1, :].unsqueeze(1) * pairs[:, :, 1:2, :]
    return (first + second).reshape(x.shape)
