"""Linear layers over a weight stored [in, out]: on the device ``x @ W.t()`` takes about 3.5 times as long as ``x @ W``
(torch-spyre#3512, spyre contract 2.1).
"""

from __future__ import annotations

import torch
from torch import Tensor

HEAD_ROWS = 64 * 32
"""The output columns of an lm head come in whole sticks on each of the 32 cores (contract 2.5)."""


def transposed(weight: Tensor, multiple: int = 1) -> Tensor:
    """``weight`` [out, in] as a contiguous [in, out + pad] whose width is a multiple of ``multiple``; the pad is
    zero."""
    rows, width = weight.shape
    stored = weight.new_zeros(width, -(-rows // multiple) * multiple)
    stored[:, :rows].copy_(weight.t())
    return stored


def linear(x: Tensor, stored: Tensor, bias: Tensor | None = None) -> Tensor:
    """[.., in] @ [in, out] + bias [out]."""
    y = torch.matmul(x, stored)
    return y if bias is None else y + bias


def head_logits(hidden: Tensor, stored: Tensor, rows: int, bias: Tensor | None = None) -> Tensor:
    """Logits [n, rows] of ``hidden`` [n, in]: the padded columns are cut off, so that none can be drawn."""
    logits = torch.matmul(hidden, stored)[:, :rows]
    return logits if bias is None else logits + bias
