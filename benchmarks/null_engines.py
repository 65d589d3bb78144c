"""Two engines without a device: ours on the null mesh, and vLLM's own scheduler before a worker that only answers."""

from __future__ import annotations

import copy
import itertools
import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import attrs
import torch

os.environ.setdefault("STEPSHAPE_TT_DEVICE", "emulated")
os.environ.setdefault("MESH_DEVICE", "TG")
os.environ.setdefault("TT_LLAMA_TEXT_VER", "llama3_70b_galaxy")
os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

from vllm import EngineArgs, SamplingParams
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.core import EngineCore
from vllm.v1.executor.uniproc_executor import UniProcExecutor
from vllm.v1.outputs import EMPTY_MODEL_RUNNER_OUTPUT, ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from stepshape.adapters.emulator.mesh.latency import NO_LATENCY, LatencyModel
from stepshape.adapters.emulator.mesh.null_model import NullForCausalLM, NullMesh
from stepshape.adapters.telemetry.step_log import StepLog
from stepshape.adapters.ttnn.model_contract import ContractGenerator
from stepshape.adapters.vllm.tenstorrent.config import ResolvedConfig
from stepshape.adapters.vllm.tenstorrent.kv_layers import default_spec
from stepshape.adapters.vllm.tenstorrent.worker import TTWorker
from stepshape.ports.generator import Generator
from stepshape.ports.mesh import Mesh
from stepshape.ports.telemetry import Telemetry

VOCAB = 128256
BLOCK = 64
MAX_LEN = 4096


class NullWorker(TTWorker):
    """Our worker and runner, whole, on a mesh that takes no time, or a stated one (``latency``)."""

    latency: LatencyModel = NO_LATENCY

    def open_mesh(self, config: ResolvedConfig) -> Mesh:
        return NullMesh(config.topology.mesh, latency=self.latency)

    def build_generator(self, config: ResolvedConfig, mesh: Mesh) -> Generator[torch.Tensor]:
        model = NullForCausalLM.initialize_vllm_model(
            self.model_config.hf_config,
            mesh.handle,
            config.topology.capacity,
            max_seq_len=self.model_config.max_model_len,
            tt_data_parallel=config.topology.lanes,
        )
        return ContractGenerator(model, mesh, config.capabilities)

    def kv_cache_spec(self, config: ResolvedConfig) -> None:
        return None

    def telemetry(self, config: ResolvedConfig) -> Telemetry:
        return StepLog(lanes=config.topology.lanes, report=None)


class TenMillisecondWorker(NullWorker):
    latency = LatencyModel(prefill_ms=10.0, decode_ms=10.0)


class AnsweringWorker(WorkerBase):
    """What vLLM's scheduler costs with no runner at all: the same token for everyone."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._scheduled: Any = None

    def init_device(self) -> None:
        self.device = torch.device("cpu")

    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        """There is none."""

    def get_kv_cache_spec(self) -> dict[str, Any]:
        return default_spec(self.vllm_config)

    def determine_available_memory(self) -> int:
        blocks = self.cache_config.num_gpu_blocks_override or 0
        return int(blocks * sum(spec.page_size_bytes for spec in self.get_kv_cache_spec().values()))

    def get_supported_kv_cache_layouts(self) -> list[str]:
        return ["LBHNC"]

    def initialize_from_config(self, kv_cache_config: Any) -> None:
        """No cache."""

    def compile_or_warm_up_model(self) -> CompilationTimes:
        return CompilationTimes(0.0, 0.0)

    def execute_model(self, scheduler_output: Any) -> ModelRunnerOutput | None:
        if not scheduler_output.total_num_scheduled_tokens:
            return EMPTY_MODEL_RUNNER_OUTPUT
        self._scheduled = scheduler_output
        return None

    def sample_tokens(self, grammar_output: Any) -> ModelRunnerOutput:
        ids = list(self._scheduled.num_scheduled_tokens)
        return ModelRunnerOutput(
            req_ids=ids,
            req_id_to_index={request_id: i for i, request_id in enumerate(ids)},
            sampled_token_ids=[[1] for _ in ids],
        )


@attrs.define
class Bench:
    """An engine core, stepped by hand."""

    core: EngineCore
    rows: int
    _ids: Any = attrs.field(factory=lambda: itertools.count())
    live: list[str] = attrs.field(factory=list)

    def add(self, prompt_length: int, max_tokens: int, **sampling: Any) -> str:
        request_id = f"r{next(self._ids)}"
        params = SamplingParams(**{"temperature": 0.0, **sampling}, max_tokens=max_tokens, ignore_eos=True)
        request = EngineCoreRequest(
            request_id=request_id,
            prompt_token_ids=[7] * prompt_length,
            mm_features=None,
            sampling_params=params,
            pooling_params=None,
            arrival_time=time.time(),
            lora_request=None,
            cache_salt=None,
            data_parallel_rank=None,
        )
        self.core.add_request(Request.from_engine_core_request(request, self.core.request_block_hasher))
        self.live.append(request_id)
        return request_id

    def drop(self, request_id: str) -> None:
        self.live.remove(request_id)
        self.core.abort_requests([request_id])

    def step(self) -> None:
        self.core.step_fn()

    def run_steps(self, count: int) -> float:
        """Seconds a step, over ``count`` steps, of this thread's processor time: with no device to wait for it is the
        wall time of an idle machine, and a neighbour's load does not count."""
        step = self.core.step_fn
        begin = time.thread_time()
        for _ in range(count):
            step()
        return (time.thread_time() - begin) / count

    def settle(self, waiting: Callable[[], bool] | None = None) -> None:
        """Step until nobody waits and the batch is steady."""
        for _ in range(10_000):
            self.step()
            running, queued = self.core.scheduler.get_request_counts()
            if not queued and running == len(self.live):
                break
        for _ in range(12):
            self.step()

    def empty(self) -> None:
        for request_id in list(self.live):
            self.drop(request_id)
        for _ in range(4):
            self.step()

    def close(self) -> None:
        self.core.shutdown()  # type: ignore[no-untyped-call]


def _checkpoint(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(
        json.dumps(
            {
                "architectures": ["LlamaForCausalLM"],
                "model_type": "llama",
                "vocab_size": VOCAB,
                "hidden_size": 64,
                "intermediate_size": 128,
                "num_hidden_layers": 2,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "max_position_embeddings": 131072,
                "torch_dtype": "float32",
            }
        )
    )
    return folder


def ours(folder: Path, *, lanes: int, rows: int, worker: type[NullWorker] = NullWorker) -> Bench:
    """``lanes`` of ``rows`` on the null mesh."""
    config = _config(folder, lanes=lanes, rows=rows, worker=worker)
    return Bench(EngineCore(config, UniProcExecutor, log_stats=True), lanes * rows)


def vllm_alone(folder: Path, *, rows: int) -> Bench:
    """vLLM's AsyncScheduler with all rows in one queue."""
    config = copy.copy(_config(folder, lanes=1, rows=rows, worker=AnsweringWorker))
    config.scheduler_config.scheduler_cls = "vllm.v1.core.sched.async_scheduler.AsyncScheduler"
    return Bench(EngineCore(config, UniProcExecutor, log_stats=True), rows)


def _config(folder: Path, *, lanes: int, rows: int, worker: type[WorkerBase]) -> Any:
    return EngineArgs(
        model=str(_checkpoint(folder)),
        skip_tokenizer_init=True,
        dtype="float32",
        max_model_len=MAX_LEN,
        max_num_seqs=rows,
        data_parallel_size=lanes,
        async_scheduling=True,
        block_size=BLOCK,
        num_gpu_blocks_override=rows * (MAX_LEN // BLOCK) + 1,
        enable_prefix_caching=False,
        enable_chunked_prefill=False,
        worker_cls=f"{worker.__module__}.{worker.__qualname__}",
        additional_config={"tt": {"sample_on_device_mode": "all"}},
    ).create_engine_config()
