"""The arithmetic of a model's layers, as a device wants it; vLLM's layer classes call it and know no device."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

Array = TypeVar("Array")


class LayerMath(Protocol[Array]):
    """Pure functions: no state, no transfer. Shapes: T tokens, h hidden, D lanes a head, V vocabulary rows.

    ``Array`` is the device's tensor in the computing functions and the host's in the preparing ones.
    """

    head_multiple: int
    """columns of a stored lm head are a multiple of this"""

    def transposed(self, weight: Array, multiple: int = 1) -> Array:
        """Host: [out, in] to a contiguous [in, out + pad], the pad zero."""
        ...

    def linear(self, x: Array, stored: Array, bias: Array | None = None) -> Array: ...

    def head_logits(self, hidden: Array, stored: Array, rows: int, bias: Array | None = None) -> Array:
        """[n, rows]: the padded columns are cut off."""
        ...

    def rms_norm(self, x: Array, weight: Array | None, eps: float, width: int | None = None) -> Array:
        """``width``: real lanes of a padded head; None: all."""
        ...

    def gemma_rms_norm(self, x: Array, weight: Array, eps: float, width: int | None = None) -> Array: ...

    def rotation_cache(self, cos_sin: Array, head_size: int) -> Array:
        """Host: the rotations of every position from vLLM's [P, rotary_dim]."""
        ...

    def rotations(self, cache: Array, positions: Array) -> Array: ...

    def rotate(self, x: Array, matrices: Array) -> Array: ...

    def shard_tables(self, shard: Any, num_embeddings: int, dtype: Any) -> tuple[Array, Array]:
        """Host: (local row of each token, 1 where the rank owns it), from vLLM's shard indices."""
        ...

    def embed(self, ids: Array, weight: Array) -> Array: ...

    def embed_shard(self, ids: Array, weight: Array, reindex: Array, keep: Array) -> Array: ...

    def to_host(self, x: Array) -> Array:
        """fp32 on the host."""
        ...

    def gelu_tanh_and_mul(self, x: Array) -> Array: ...
