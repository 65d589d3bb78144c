"""Engines built in this process on the emulated Spyre card. The process must have selected it before vLLM is imported;
``tests/integration/test_spyre_engines.py`` starts such processes."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from stepshape.domain.bucket_counts import BucketCounts


class SpyreEngine:
    """vLLM's own ``LLMEngine``, stepped to the end of its requests."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine
        self._count = 0

    @property
    def core(self) -> Any:
        return self.engine.engine_core.engine_core

    @property
    def scheduler(self) -> Any:
        return self.core.scheduler

    @property
    def runner(self) -> Any:
        return self.core.model_executor.driver_worker.worker.model_runner

    @property
    def counts(self) -> BucketCounts:
        counts = self.runner.kit.telemetry.counts
        assert isinstance(counts, BucketCounts)
        return counts

    @property
    def events(self) -> dict[str, int]:
        """What the card counted since warm-up."""
        events: dict[str, int] = self.runner.kit.telemetry.events()
        return events

    @property
    def late(self) -> int:
        """Kernels compiled after warm-up, of either kind."""
        return self.events["artifacts"] + self.events["eager_kernels"]

    def add(self, prompt: Sequence[int], params: Any) -> str:
        self._count += 1
        request_id = f"r{self._count}"
        self.engine.add_request(request_id, {"prompt_token_ids": list(prompt)}, params)
        return request_id

    def step(self) -> list[Any]:
        outputs: list[Any] = self.engine.step()
        return outputs

    def run(self, prompts: Sequence[Sequence[int]], params: Any) -> list[Any]:
        """Each prompt's final output, in order. ``params``: one for all, or one each."""
        each = list(params) if isinstance(params, (list, tuple)) else [params] * len(prompts)
        ids = [self.add(prompt, p) for prompt, p in zip(prompts, each, strict=True)]
        final: dict[str, Any] = {}
        while self.engine.has_unfinished_requests():
            for output in self.step():
                if output.finished:
                    final[output.request_id] = output
        return [final[request_id] for request_id in ids]

    def tokens(self, prompts: Sequence[Sequence[int]], params: Any) -> list[list[int]]:
        return [list(output.outputs[0].token_ids) for output in self.run(prompts, params)]


@contextmanager
def spyre_engine(checkpoint: Path, **arguments: Any) -> Iterator[SpyreEngine]:
    """Four sequences of up to 256 tokens, bodies of up to 64, pages of 64 tokens, eager, unless told otherwise."""
    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    torch._dynamo.reset()
    settings: dict[str, Any] = {
        "model": str(checkpoint),
        "max_model_len": 256,
        "max_num_seqs": 4,
        "max_num_batched_tokens": 64,
        "block_size": 64,
        "enforce_eager": True,
        "enable_prefix_caching": False,
        "disable_log_stats": True,
        "skip_tokenizer_init": True,
        **arguments,
    }
    built = LLMEngine.from_engine_args(EngineArgs(**settings), enable_multiprocessing=False)
    try:
        yield SpyreEngine(built)
    finally:
        built.engine_core.shutdown()
        del built
        gc.collect()


def spyre_config(kind: str) -> Any:
    """A tiny checkpoint's config in shapes that the card takes: whole sticks of hidden size."""
    from .tiny_checkpoints import config

    made = config(kind)
    made.hidden_size = 64
    made.num_attention_heads = 4
    made.tie_word_embeddings = kind == "gemma2"  # vLLM's Gemma 2 has no lm head of its own
    return made


def greedy(tokens: int, **more: Any) -> Any:
    from vllm import SamplingParams

    return SamplingParams(temperature=0.0, max_tokens=tokens, ignore_eos=True, detokenize=False, **more)
