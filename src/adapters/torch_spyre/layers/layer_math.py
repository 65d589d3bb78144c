"""The layers of Spyre behind the port :class:`stepshape.ports.layers.LayerMath`."""

from __future__ import annotations

import attrs
from torch import Tensor, float32

from . import activations, embedding, linears, norms, rotary


@attrs.frozen
class SpyreLayers:
    """Names the functions of this package. ``exact``: the device keeps fp32 under the name of fp16, as the emulated
    card does without rounding."""

    exact: bool = False

    head_multiple = linears.HEAD_ROWS
    transposed = staticmethod(linears.transposed)
    linear = staticmethod(linears.linear)
    head_logits = staticmethod(linears.head_logits)
    rms_norm = staticmethod(norms.rms_norm)
    gemma_rms_norm = staticmethod(norms.gemma_rms_norm)
    rotation_cache = staticmethod(rotary.rotation_cache)
    rotations = staticmethod(rotary.rotations)
    rotate = staticmethod(rotary.rotate)
    shard_tables = staticmethod(embedding.shard_tables)
    embed = staticmethod(embedding.embed)
    embed_shard = staticmethod(embedding.embed_shard)
    gelu_tanh_and_mul = staticmethod(activations.gelu_tanh_and_mul)

    def to_host(self, x: Tensor) -> Tensor:
        """fp32 on the host. The card casts in compiled graphs only, so the cast is the host's."""
        return x.to("cpu", float32) if self.exact else x.to("cpu").to(float32)
