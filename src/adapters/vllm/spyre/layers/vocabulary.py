"""Embedding, lm head and logits (spyre contract 2.4 to 2.6)."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from vllm.distributed import tensor_model_parallel_all_reduce
from vllm.model_executor.layers.logits_processor import LogitsProcessor
from vllm.model_executor.layers.vocab_parallel_embedding import (
    ParallelLMHead,
    UnquantizedEmbeddingMethod,
    VocabParallelEmbedding,
)

from .....ports.layers import LayerMath


def vocabulary_classes(math: LayerMath[Tensor]) -> dict[str, type[nn.Module]]:
    """vLLM's class name to the class that takes its place."""
    transposed, head_logits, multiple = math.transposed, math.head_logits, math.head_multiple
    embed, embed_shard, shard_tables = math.embed, math.embed_shard, math.shard_tables
    to_host = math.to_host

    class PaddedHeadMethod(UnquantizedEmbeddingMethod):
        """An lm head with a transposed, padded copy of its weight; the weight itself may be the embedding's."""

        def process_weights_after_loading(self, layer: Any) -> None:
            layer.padded_weight_t = nn.Parameter(transposed(layer.weight.data, multiple), requires_grad=False)

        def apply(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
            return head_logits(x, layer.padded_weight_t, layer.num_embeddings_per_partition, bias)

    class EmbeddingMethod(PaddedHeadMethod):
        """An embedding has no head until :func:`prepare_tied_head` finds that the model uses it as one."""

        def process_weights_after_loading(self, layer: Any) -> None:
            pass

        def prepare_head(self, layer: Any) -> None:
            super().process_weights_after_loading(layer)

    def check(layer: Any) -> None:
        if type(layer.quant_method) is not UnquantizedEmbeddingMethod:
            raise NotImplementedError(
                f"a vocabulary stored by {type(layer.quant_method).__name__} does not run on Spyre; serve a "
                "checkpoint of plain weights"
            )

    class SpyreVocabParallelEmbedding(VocabParallelEmbedding):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            check(self)
            self.quant_method = EmbeddingMethod()
            if self.tp_size > 1:
                reindex, keep = shard_tables(self.shard_indices, self.num_embeddings, self.params_dtype)
                self.register_buffer("reindex", reindex, persistent=False)
                self.register_buffer("keep", keep, persistent=False)

        def forward(self, input_: Tensor) -> Tensor:
            if self.tp_size == 1:
                return embed(input_, self.weight)
            part = embed_shard(input_, self.weight, self.reindex, self.keep)
            return tensor_model_parallel_all_reduce(part) if self.reduce_results else part

    class SpyreParallelLMHead(ParallelLMHead):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            super().__init__(*args, **kwargs)
            check(self)
            self.quant_method = PaddedHeadMethod()

    class SpyreLogitsProcessor(LogitsProcessor):
        """Logits leave the device as it computed them; scale, soft cap and sampling see fp32 on the host. The ranks'
        parts are put together there too: they are wanted nowhere else."""

        def _apply_head(self, lm_head: Any, hidden_states: Tensor, embedding_bias: Tensor | None) -> Tensor:
            logits = lm_head.quant_method.apply(lm_head, hidden_states, bias=embedding_bias)
            return to_host(logits)

    return {
        "VocabParallelEmbedding": SpyreVocabParallelEmbedding,
        "ParallelLMHead": SpyreParallelLMHead,
        "LogitsProcessor": SpyreLogitsProcessor,
    }


def prepare_tied_head(model: nn.Module) -> None:
    """Give the embedding a head where the model has no lm head of its own: Gemma 2 calls it as one."""
    modules = list(model.modules())
    if any(isinstance(module, ParallelLMHead) for module in modules):
        return
    for module in modules:
        if isinstance(module, VocabParallelEmbedding):
            module.quant_method.prepare_head(module)
