"""RMS norms in the activations' own type, without its overflow.

The device has no dtype cast in eager mode, and in fp16 the square of any activation past 255 is infinite: the public
plugin's fp16 norm then returns zeros for the row. Here the row is divided by its largest magnitude first, which
changes nothing in exact arithmetic: with y = x / s,

    x / sqrt(mean(x^2) + eps) = y / sqrt(mean(y^2) + eps / s^2)
"""

from __future__ import annotations

import torch
from torch import Tensor

_LEAST = 2.0**-14
"""Added to s, so that a row of zeros stays zeros; the smallest normal fp16."""


def _normalised(x: Tensor, eps: float, width: int) -> Tensor:
    """``x`` over the root mean square of its last dimension, of which ``width`` lanes are real and the rest zero."""
    scale = torch.amax(torch.abs(x), dim=-1, keepdim=True) + _LEAST
    y = x / scale
    floor = (eps**0.5) / scale
    # Summed before it is divided: a lane's share of the mean may be below fp16, the sum is between 1 and ``width``.
    mean = torch.sum(y * y, dim=-1, keepdim=True) * (1.0 / width)
    return y * torch.rsqrt(mean + floor * floor)


def rms_norm(x: Tensor, weight: Tensor | None, eps: float, width: int | None = None) -> Tensor:
    """``x`` [.., h] normalised and scaled by ``weight`` [h] (None: not scaled).

    ``width``: real lanes of a padded head, whose further lanes are zero in ``x``; None: all of h.
    """
    y = _normalised(x, eps, x.shape[-1] if width is None else width)
    return y if weight is None else y * weight


def gemma_rms_norm(x: Tensor, weight: Tensor, eps: float, width: int | None = None) -> Tensor:
    """Gemma's norm: scaled by 1 + ``weight``."""
    return _normalised(x, eps, x.shape[-1] if width is None else width) * (weight + 1.0)
