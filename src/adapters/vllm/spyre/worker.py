"""vLLM's worker with its device on Spyre: opens the card, builds the runner, sizes the cache, warms up."""

from __future__ import annotations

import os
from abc import abstractmethod
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from vllm.platforms import current_platform
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.worker.gpu_worker import Worker, init_worker_distributed_environment
from vllm.v1.worker.worker_base import CompilationTimes
from vllm.v1.worker.workspace import init_workspace_manager

from .kit import DeviceKit
from .loader import naming_the_model
from .runner import SpyreModelRunner
from .warm_up import warm_up


class SpyreWorker(Worker):
    """The composition root (``plugins``) says which device."""

    model_runner: SpyreModelRunner

    @abstractmethod
    def open_device(self) -> DeviceKit:
        """Load the device for this worker's rank and put together what computes on it."""

    def init_device(self) -> None:
        # The communication library reads these once, when it is loaded.
        ranks = self.parallel_config.tensor_parallel_size
        for name, value in (
            ("RANK", self.rank),
            ("LOCAL_RANK", self.local_rank),
            ("WORLD_SIZE", ranks),
            ("LOCAL_WORLD_SIZE", ranks),
        ):
            os.environ.setdefault(name, str(value))
        self.device = torch.device("cpu")  # vLLM's side of it; the card is the runner's
        kit = self.open_device()
        init_worker_distributed_environment(
            self.vllm_config,
            self.rank,
            self.distributed_init_method,
            self.local_rank,
            current_platform.dist_backend if ranks > 1 else "gloo",
        )
        set_random_seed(self.model_config.seed)
        init_workspace_manager(self.device, 1)
        self.model_runner = SpyreModelRunner(self.vllm_config, kit)

    def _maybe_get_memory_pool_context(self, tag: str) -> AbstractContextManager[Any]:
        """No pool: vLLM's is CUDA's."""
        return nullcontext()

    def determine_available_memory(self) -> int:
        """Bytes for the KV cache, as the platform's hook settled them: nothing is measured, so no dummy run."""
        size = self.cache_config.kv_cache_memory_bytes
        assert size is not None, "the platform's hook sets it"
        return int(size)

    def compile_or_warm_up_model(self) -> CompilationTimes:
        with naming_the_model(self.model_config, "run on the card"):
            seconds = warm_up(self.model_runner)
        set_random_seed(self.model_config.seed)
        return CompilationTimes(language_model=seconds, encoder=0.0)

    def execute_dummy_batch(self) -> None:
        """Only data parallelism runs dummy batches, and it is refused."""

    def sleep(self, level: int = 1) -> None:
        """Memory of the card cannot be given back and had again."""

    def wake_up(self, tags: list[str] | None = None) -> None:
        """There is no sleep to wake from."""

    def shutdown(self) -> None:
        super().shutdown()
        self.model_runner.kit.telemetry.close()
