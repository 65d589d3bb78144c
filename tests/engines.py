"""Engines built in this process on the emulated mesh, and what ``transformers`` itself would have said."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from stepshape.domain.step_counts import StepCounts


class EngineUnderTest:
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
    def worker(self) -> Any:
        return self.core.model_executor.driver_worker.worker

    @property
    def counts(self) -> StepCounts:
        counts = self.worker._telemetry.counts
        assert isinstance(counts, StepCounts)
        return counts

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
def engine(
    checkpoint: Path,
    *,
    lanes: int = 1,
    rows: int = 8,
    asynchronous: bool = True,
    on_device: bool = True,
    budget: int | None = None,
    blocks: int | None = None,
    prefix_caching: bool = False,
    max_len: int = 1024,
    block_size: int = 32,
    tt: dict[str, Any] | None = None,
    **arguments: Any,
) -> Iterator[EngineUnderTest]:
    """``lanes`` of ``rows``. ``budget``: tokens a step with chunked prefill (None: not chunked). ``blocks``: KV blocks
    a lane."""
    import os

    from vllm import EngineArgs
    from vllm.v1.engine.llm_engine import LLMEngine

    options: dict[str, Any] = dict(tt or {})
    if on_device:
        options.setdefault("sample_on_device_mode", "all")
    settings: dict[str, Any] = {
        "model": str(checkpoint),
        "dtype": "float32",
        "max_model_len": max_len,
        "max_num_seqs": rows,
        "data_parallel_size": lanes,
        "async_scheduling": asynchronous,
        "block_size": block_size,
        "num_gpu_blocks_override": blocks,
        "enable_prefix_caching": prefix_caching,
        "enable_chunked_prefill": budget is not None,
        "additional_config": {"tt": options},
        "disable_log_stats": True,
    }
    if budget is not None:
        settings["max_num_batched_tokens"] = budget
    settings.update(arguments)
    environment = {"MESH_DEVICE": "TG", "TT_LLAMA_TEXT_VER": "llama3_70b_galaxy", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
    before = {name: os.environ.get(name) for name in environment}
    os.environ.update(environment)
    built = None
    try:
        built = LLMEngine.from_engine_args(EngineArgs(**settings), enable_multiprocessing=False)
        yield EngineUnderTest(built)
    finally:
        if built is not None:
            built.engine_core.shutdown()
            del built
        gc.collect()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


@lru_cache(maxsize=4)
def _reference(checkpoint: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM

    loader: Any = AutoModelForCausalLM
    return loader.from_pretrained(checkpoint, dtype=torch.float32).eval()


def greedy_reference(checkpoint: Path, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """``transformers``' own greedy generation, one prompt alone, end token ignored."""
    return list(_greedy(checkpoint, tuple(prompt), new_tokens))


@lru_cache(maxsize=256)
def _greedy(checkpoint: Path, prompt: tuple[int, ...], new_tokens: int) -> tuple[int, ...]:
    import torch

    model = _reference(checkpoint)
    ids = torch.tensor([prompt])
    with torch.no_grad():
        out = model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=new_tokens,
            min_new_tokens=new_tokens,
            do_sample=False,
            eos_token_id=None,
            pad_token_id=0,
        )
    return tuple(out[0, len(prompt) :].tolist())


def random_prompts(lengths: Sequence[int], *, vocab: int, seed: int = 0, shared: int = 0) -> list[list[int]]:
    """Token prompts of the given lengths, no special token among them; the first ``shared`` tokens are the same."""
    rng = np.random.default_rng(seed)
    prefix = rng.integers(3, vocab, shared).tolist()
    return [(prefix + rng.integers(3, vocab, max(0, n - shared)).tolist())[:n] for n in lengths]
