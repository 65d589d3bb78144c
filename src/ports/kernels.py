"""A step's attention as the engine asks for it; what runs underneath is the device's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol, TypeVar

Array = TypeVar("Array")
Array_co = TypeVar("Array_co", covariant=True)


class Step(Protocol[Array_co]):
    """What one step's kernels read, on the device: made once, shared by every layer."""

    @property
    def extra(self) -> Mapping[str, Array_co]:
        """The further tables that went up with the step, by name."""
        ...

    @property
    def copies(self) -> int:
        """Host-to-device copies that the step took."""
        ...


class LayerAttention(Protocol[Array]):
    """The attention of one layer: T rows of the body, H query and KV key heads of D lanes."""

    def store(self, k_pages: Array, v_pages: Array, key: Array, value: Array, step: Any) -> None:
        """Write ``key`` and ``value`` [T, KV, D] into the layer's pages [NB, block, KV, D]."""
        ...

    def attend(self, query: Array, k_pages: Array, v_pages: Array, step: Any) -> Array:
        """[T, H, D]; zeros in the body's padding. ``store`` comes first."""
        ...


class AttentionEngine(Protocol[Array]):
    """All attention of one engine."""

    def build(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        block_table: Any,
        slots: Any,
        body_rows: int,
        extra: Mapping[str, Any] | None = None,
    ) -> Step[Array]:
        """One step's tables. ``block_table`` [sequences, W] and ``slots`` [real rows] are host arrays of integers."""
        ...

    def variants(self, step: Any) -> tuple[Any, ...]:
        """The kernel shapes that ``step`` runs in one kind of layer
        (:data:`stepshape.domain.attention_plan.Variant`)."""
        ...

    def warm_up_steps(self) -> Sequence[Any]:
        """A step for every shape that can be served (:class:`stepshape.domain.warmup.WarmupStep`)."""
        ...

    def layer(
        self, *, heads: int, size: int, scale: float, soft_cap: float, window: int | None
    ) -> LayerAttention[Array]:
        """The attention of a layer with ``heads`` query heads of ``size`` lanes."""
        ...
