"""The device and what computes on it, as the composition root put them together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import attrs
import torch
from torch import Tensor, nn

from ....domain.attention_plan import Variant
from ....domain.buckets import Ladder
from ....domain.head_padding import Widening
from ....ports.kernels import AttentionEngine


class SpyreTelemetry(Protocol):
    """Called once a step on the engine's thread; must cost microseconds."""

    def step(
        self,
        query_lens: Sequence[int],
        context_lens: Sequence[int],
        body: int,
        variants: Iterable[Variant],
        copies: int,
    ) -> None: ...

    def warmed_up(self, variants: int, seconds: float) -> None: ...

    def close(self) -> None: ...


@attrs.frozen(eq=False, kw_only=True)
class DeviceKit:
    device: torch.device
    telemetry: SpyreTelemetry
    attention: Callable[[int, Sequence[int | None], Ladder, Mapping[str, Ladder]], AttentionEngine[Tensor]]
    """(pages, windows, body ladder, ladders of the further tables) to an engine's attention"""
    compile_model: Callable[[nn.Module, Callable[[nn.Module], bool]], None]
    """compiles in place; told which modules are attention layers"""
    widen_heads: Callable[[str, Tensor, Widening, int, int], Tensor]
    """(checkpoint name, weight, heads, query heads, KV heads) to the stored weight"""
    widen_mlp: Callable[[str, Tensor, Widening], Tensor]
    weights_dtype: torch.dtype
    """of the weights on the host: the card's, or fp32 where the emulated one keeps fp32 under that name"""
    seal: Callable[[], None]
    """warm-up is over"""
    late_graphs: Callable[[], int]
    """graphs compiled since warm-up"""
    progress: Callable[[str, int, str], AbstractContextManager[Callable[[str], None]]]
    """(title, pieces, their name) to what is called after each piece with the name of the next"""
