"""The layers of Spyre behind the port :class:`stepshape.ports.layers.LayerMath`."""

from __future__ import annotations

from . import activations, embedding, linears, norms, rotary


class SpyreLayers:
    """Names the functions of this package; it holds nothing."""

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
