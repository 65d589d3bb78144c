"""vLLM's worker for a mesh: opens the device, loads the model, sizes the KV pools, runs plans, closes the device."""
from __future__ import annotations

import functools
import time
from abc import abstractmethod
from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, TypeVar

import structlog
import torch
from vllm.utils.torch_utils import set_random_seed
from vllm.v1.core.sched.output import GrammarOutput, SchedulerOutput
from vllm.v1.kv_cache_interface import KVCacheConfig, KVCacheSpec
from vllm.v1.outputs import AsyncModelRunnerOutput, ModelRunnerOutput
from vllm.v1.sample.logits_processor import LogitsProcessors, build_logitsprocs
from vllm.v1.sample.sampler import Sampler
from vllm.v1.worker.worker_base import CompilationTimes, WorkerBase

from ....domain.capacity import blocks_per_row
from ....domain.tt_options import TraceMode
from ....ports.generator import Generator
from ....ports.mesh import Mesh
from ....ports.sampling import SampleOnDevice
from ....ports.telemetry import Telemetry
from ..outputs import PlannedSchedulerOutput
from ..releases.teardown import spare_absent_accelerator
from ..runner import StepRunner, grammar_mask
from .config import ResolvedConfig, resolved
from .kv_layers import default_spec, kv_layers, layer_groups, num_attention_layers
from .scheduler import engine_settings

log = structlog.get_logger(__name__)

_LAYOUTS = ["LBHNC", "LBNHC", "BLHNC", "BLNHC"]

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def _closes_on_failure(
    step: Callable[Concatenate[TTWorker, Arguments], Result],
) -> Callable[Concatenate[TTWorker, Arguments], Result]:
    """A step of the start: where it fails the mesh is closed, since vLLM does not shut a worker down that failed to
    start, and the chips would stay locked."""

    @functools.wraps(step)
    def guarded(self: TTWorker, /, *args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        try:
            return step(self, *args, **kwargs)
        except BaseException:
            self.shutdown()
            raise

    return guarded


class TTWorker(WorkerBase):
    """The composition root (``plugins``) says which mesh, which generator and which telemetry."""

    @abstractmethod
    def open_mesh(self, config: ResolvedConfig) -> Mesh: ...

    @abstractmethod
    def build_generator(self, config: ResolvedConfig, mesh: Mesh) -> Generator[torch.Tensor]: ...

    @abstractmethod
    def kv_cache_spec(self, config: ResolvedConfig) -> dict[str, KVCacheSpec] | None:
        """The model's own per-layer specs; None: one uniform spec."""

    @abstractmethod
    def telemetry(self, config: ResolvedConfig) -> Telemetry: ...

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._config = resolved(self.vllm_config)
        self._mesh: Mesh | None = None
        self._generator: Generator[torch.Tensor] | None = None
        self._runner: StepRunner | None = None
        self._telemetry: Telemetry | None = None
        self._width = 0

    # -- start -----------------------------------------------------------------------------------------------------

    @_closes_on_failure
    def init_device(self) -> None:
        self.device = torch.device("cpu")  # host tensors; the mesh is not a torch device
        spare_absent_accelerator()
        self._mesh = self.open_mesh(self._config)
        set_random_seed(self.model_config.seed)

    @_closes_on_failure
    def load_model(self, *, load_dummy_weights: bool = False) -> None:
        self._generator = self.build_generator(self._config, self._opened())

    def get_kv_cache_spec(self) -> dict[str, KVCacheSpec]:
        own = self.kv_cache_spec(self._config)
        return own if own is not None else default_spec(self.vllm_config)

    def determine_available_memory(self) -> int:
        """Bytes that make vLLM's planner, perhaps in another process, arrive at our number of blocks."""
        blocks = self._config.num_blocks
        self.cache_config.num_gpu_blocks_override = blocks
        return blocks * sum(spec.page_size_bytes for spec in self.get_kv_cache_spec().values())

    def get_supported_kv_cache_layouts(self) -> list[str]:
        # The mesh lays its own cache out; any of them is right, and upstream's default asks for an attention backend.
        return _LAYOUTS

    def update_max_model_len(self, max_model_len: int) -> None:
        self.model_config.max_model_len = max_model_len

    @_closes_on_failure
    def initialize_from_config(self, kv_cache_config: KVCacheConfig) -> None:
        generator = self._loaded()
        layers = num_attention_layers(self.vllm_config)
        generator.allocate_kv_cache(
            kv_layers(kv_cache_config, layers=layers, devices_per_lane=self._config.topology.devices_per_lane)
        )
        settings = engine_settings(self.vllm_config)
        widths = [
            blocks_per_row(self.model_config.max_model_len, group.kv_cache_spec.block_size, kv_cache_config.num_blocks)
            for group in kv_cache_config.kv_cache_groups
        ]
        custom = tuple(self.model_config.logits_processors or ())

        def processors() -> LogitsProcessors:
            return build_logitsprocs(self.vllm_config, torch.device("cpu"), False, False, custom)

        self._telemetry = self.telemetry(self._config)
        self._runner = StepRunner(
            settings=settings,
            generator=generator,
            max_len=self.model_config.max_model_len,
            widths=[max(widths)] * len(widths),
            layer_groups=layer_groups(kv_cache_config, layers),
            sampler=Sampler(logprobs_mode=self.model_config.logprobs_mode),
            processors=processors,
            telemetry=self._telemetry,
        )
        self._width = max(widths)

    @_closes_on_failure
    def compile_or_warm_up_model(self) -> CompilationTimes:
        """Two phases: every program is compiled before the first trace is captured, since a compile after that may
        allocate where the trace replays (contract 3.7)."""
        options = self._config.options
        started = time.monotonic()
        if options.enable_model_warmup:
            generator = self._loaded()
            mode = self._config.sample_on_device
            prefill_on_device = mode is SampleOnDevice.ALL
            decode_on_device = mode is not SampleOnDevice.OFF
            capacity = self._config.topology.capacity
            for traced in (False, True):
                if traced and options.trace_mode is TraceMode.NONE:
                    break
                prefill_traced = traced and options.trace_mode is TraceMode.ALL
                log.info("warm_up", phase="capture" if traced else "compile", rows=capacity, blocks_per_row=self._width)
                if not traced or prefill_traced:
                    generator.warm_up_prefill(sample_on_device=prefill_on_device, traced=prefill_traced)
                generator.warm_up_decode(
                    max_batch_size=capacity,
                    blocks_per_row=self._width,
                    sample_on_device=decode_on_device,
                    traced=traced,
                )
        return CompilationTimes(language_model=time.monotonic() - started, encoder=0.0)

    # -- steps -----------------------------------------------------------------------------------------------------

    @torch.no_grad()
    def execute_model(
        self, scheduler_output: SchedulerOutput
    ) -> ModelRunnerOutput | AsyncModelRunnerOutput | None:
        if not isinstance(scheduler_output, PlannedSchedulerOutput) or scheduler_output.plan is None:
            raise TypeError(
                f"a {type(scheduler_output).__name__} carries no step plan; this worker needs Stepshape's scheduler "
                "(leave --scheduler-cls unset)"
            )
        return self._running().execute(scheduler_output.plan)

    @torch.no_grad()
    def sample_tokens(self, grammar_output: GrammarOutput | None) -> ModelRunnerOutput | AsyncModelRunnerOutput:
        frame = self._running().sample(grammar_mask(grammar_output))
        if frame is None:
            return None  # type: ignore[return-value]  # the engine then raises what execute_model raised
        return frame if self.scheduler_config.async_scheduling else frame.get_output()

    # -- the rest --------------------------------------------------------------------------------------------------

    def get_supported_tasks(self) -> tuple[str, ...]:
        return ("generate",) if self.model_config.runner_type == "generate" else ()

    def synchronize_device(self) -> None:
        if self._runner is not None:
            self._runner.drain()

    def shutdown(self) -> None:
        """Close the mesh, whatever state the start or the last step left. Safe to call twice."""
        runner, self._runner = self._runner, None
        telemetry, self._telemetry = self._telemetry, None
        mesh, self._mesh = self._mesh, None
        self._generator = None
        try:
            if runner is not None:
                runner.drain()
            if telemetry is not None:
                telemetry.close()
        finally:
            if mesh is not None:
                mesh.close()

    def _opened(self) -> Mesh:
        if self._mesh is None:
            raise RuntimeError("the mesh is not open; init_device comes first")
        return self._mesh

    def _loaded(self) -> Generator[torch.Tensor]:
        if self._generator is None:
            raise RuntimeError("the model is not loaded; load_model comes first")
        return self._generator

    def _running(self) -> StepRunner:
        if self._runner is None:
            raise RuntimeError("the KV cache is not allocated; initialize_from_config comes first")
        return self._runner
