"""RMS norms, plain and Gemma's (spyre contract 2.2)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

from .....ports.layers import LayerMath


def norm_classes(math: LayerMath[Tensor]) -> dict[str, type[nn.Module]]:
    """vLLM's class name to the class that takes its place."""
    rms_norm, gemma_rms_norm = math.rms_norm, math.gemma_rms_norm

    class SpyreRMSNorm(RMSNorm):
        """``real_width`` is set on the query and key norms of padded heads, whose further lanes are zero."""

        real_width: int | None = None

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            if self.variance_size_override is not None:
                raise NotImplementedError(
                    f"an RMS norm over {self.variance_size_override} of {self.hidden_size} lanes does not run on "
                    "Spyre; serve a model that normalises over all of them"
                )

        def forward_oot(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
            weight = self.weight if self.has_weight else None
            if residual is None:
                return rms_norm(x, weight, self.variance_epsilon, self.real_width)
            x = x + residual
            return rms_norm(x, weight, self.variance_epsilon, self.real_width), x

    class SpyreGemmaRMSNorm(GemmaRMSNorm):
        real_width: int | None = None

        def forward_oot(self, x: Tensor, residual: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
            if residual is None:
                return gemma_rms_norm(x, self.weight, self.variance_epsilon, self.real_width)
            x = x + residual
            return gemma_rms_norm(x, self.weight, self.variance_epsilon, self.real_width), x

    return {"RMSNorm": SpyreRMSNorm, "GemmaRMSNorm": SpyreGemmaRMSNorm}
