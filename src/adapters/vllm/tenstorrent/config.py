"""From a ``VllmConfig`` to what one mesh engine runs with, and back: facts read, rules asked, changes written.

The result is kept as plain JSON in ``additional_config``, because the config is pickled to the engine process and
the hook runs again there, on values that are already folded.
"""

from __future__ import annotations

import enum
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import attrs
from vllm.config import VllmConfig
from vllm.logger import init_logger

from ....domain.capacity import DEFAULT_TOKENS_ALL_USERS, kv_blocks, refuse_model_len
from ....domain.device_groups import bind_rank
from ....domain.model_table import SINGLE_EXECUTE, ModelTableError, prefixed
from ....domain.rules import (
    ConfigFacts,
    ConfigurationError,
    environment_refusals,
    launch_refusals,
    settle,
)
from ....domain.selection import Device
from ....domain.topology import Topology, TopologyError, fold, parse_mesh, visible_devices
from ....domain.tt_options import OptionsError, TTOptions, read_tt_options
from ....ports.capabilities import CapabilityError, ModelCapabilities, read_capabilities
from ....ports.sampling import SampleOnDevice
from ..adjustments import apply_adjustment, scheduler_refusal
from .registry import ModelRegistrar, load_class

SECTION = "_stepshape_tt"
"""Our key of ``additional_config``, outside the operator's ``tt``."""
SCHEDULER = "stepshape.adapters.vllm.tenstorrent.scheduler.TTScheduler"

# vLLM's own logger: its lines reach the user of `vllm serve`, under its format and level.
log = init_logger(f"vllm.{__name__}")


@attrs.frozen(kw_only=True)
class Host:
    """What the composition root read of this process's host."""

    device: Device
    problem: str | None
    """why the selection of the device cannot stand"""
    chips: Callable[[], int]
    """counts the chips; raises ``TopologyError`` where that cannot be done"""
    environment: Mapping[str, str]
    registrar: ModelRegistrar
    worker: str
    """class path of the worker that knows which mesh and generator to build"""

    def refusals(self) -> tuple[str, ...]:
        """The refusals that need no model: asked before the command line is parsed."""
        own = () if self.problem is None else (self.problem,)
        return own + environment_refusals(
            rust_frontend=self.environment.get("VLLM_USE_RUST_FRONTEND", "0").strip() not in ("", "0"),
            v2_model_runner=self.environment.get("VLLM_USE_V2_MODEL_RUNNER"),
        )


@attrs.frozen(kw_only=True)
class ResolvedConfig:
    """What a launch comes down to. The same in the front end and in the engine process."""

    device: Device
    architecture: str
    """the checkpoint's, without our prefix"""
    model_class: str
    """``module:Class``"""
    topology: Topology
    capabilities: ModelCapabilities
    options: TTOptions
    num_blocks: int
    """KV blocks of each lane, the null block included"""
    block_size: int
    """tokens"""
    async_on: bool
    chunked_prefill: bool
    prefix_caching: bool

    @property
    def sample_on_device(self) -> SampleOnDevice:
        return self.options.sampler

    def describe(self) -> str:
        """The start-up line."""
        lane = "a lane" if self.topology.lanes > 1 else "in all"
        kv = f"KV {self.num_blocks} blocks of {self.block_size} tokens {lane}"
        parts = [self.topology.describe(), kv, self._sampling()]
        parts += [
            f"{name} {'on' if state else 'off'}"
            for name, state in (
                ("async scheduling", self.async_on),
                ("chunked prefill", self.chunked_prefill),
                ("prefix caching", self.prefix_caching),
            )
        ]
        if self.capabilities.unknown:
            parts.append(f"capabilities not known here: {', '.join(self.capabilities.unknown)}")
        return f"Tenstorrent ({self.device.value}) {self.architecture}: {'; '.join(parts)}"

    def _sampling(self) -> str:
        if self.options.always_compat_sampling:
            return "sampling on the host (always_compat_sampling)"
        if self.sample_on_device is SampleOnDevice.OFF:
            return "sampling on the host (sample_on_device_mode is not set)"
        rows = "rows" if self.capabilities.supports_tokens_and_logits else "batches"
        where = "prefill and decode" if self.sample_on_device is SampleOnDevice.ALL else "decode"
        return (
            f"sampling on the device in {where} (sample_on_device_mode={self.sample_on_device.value}), "
            f"{rows} that need it on the host"
        )


def resolved(vllm_config: VllmConfig) -> ResolvedConfig:
    """What :func:`check_and_update` stored. Raises :class:`ConfigurationError` if the hook has not run on this
    config."""
    result = _stored(vllm_config)
    if result is None:
        raise ConfigurationError(
            (
                "the configuration was not checked by the Tenstorrent platform; build it with "
                "EngineArgs.create_engine_config",
            )
        )
    return result


def has_model(vllm_config: Any) -> bool:
    """False for the bare ``VllmConfig()`` that vLLM builds for itself in places, whatever its type says."""
    return vllm_config.model_config is not None


def check_and_update(vllm_config: VllmConfig, host: Host) -> ResolvedConfig | None:
    """Check ``vllm_config`` and bring it into the form the mesh runs; None for a config without a model.

    Raises :class:`ConfigurationError` with every problem found at that depth. Calling it again, here or in another
    process, changes nothing more and says nothing more.
    """
    if not has_model(vllm_config):
        return None
    facts = _read_facts(vllm_config, host)
    problems = list(host.refusals()[:1] if host.problem else ()) + list(launch_refusals(facts))
    replaced = scheduler_refusal(vllm_config, (SCHEDULER,))
    if replaced is not None:
        problems.append(replaced)
    options = TTOptions()
    try:
        options = read_tt_options(vllm_config.additional_config)
    except OptionsError as error:
        problems.extend(error.problems)
    mesh = (1, 1)
    try:
        mesh = _mesh(vllm_config, host)
    except TopologyError as error:
        problems.append(str(error))
    if problems:
        raise ConfigurationError(tuple(problems))

    before = _stored(vllm_config)
    hf_config = vllm_config.model_config.hf_config
    architectures = list(hf_config.architectures or ())
    try:
        architecture, target = host.registrar.target_of(architectures, options.register_test_models)
    except ModelTableError as error:
        raise ConfigurationError((str(error),)) from error
    model_class = load_class(target)
    try:
        capabilities = read_capabilities(getattr(model_class, "model_capabilities", None), model_class.__name__)
    except CapabilityError as error:
        raise ConfigurationError((str(error),)) from error
    unfit = class_problems(model_class)
    if unfit:
        raise ConfigurationError(unfit)
    lane_counts_for = getattr(model_class, "lane_counts_for", None)
    if lane_counts_for is not None:  # lanes that depend on the mesh
        capabilities = attrs.evolve(capabilities, lane_counts=tuple(lane_counts_for(mesh)))
    verdict = settle(facts, capabilities, options, architecture)
    if verdict.refusals:
        raise ConfigurationError(verdict.refusals)
    try:
        topology = fold(
            mesh=mesh,
            data_parallel_size=vllm_config.parallel_config.data_parallel_size,
            max_num_seqs=vllm_config.scheduler_config.max_num_seqs,
            declared_lanes=_lane_counts(model_class, target, capabilities, mesh),
            model=architecture,
            folded=None if before is None else before.topology,
        )
    except TopologyError as error:
        raise ConfigurationError((str(error),)) from error

    for adjustment in verdict.adjustments:
        apply_adjustment(vllm_config, adjustment, device="Tenstorrent", quiet=before is not None)
    _apply_topology(vllm_config, topology, host.worker)
    hf_config.architectures = [prefixed(name) for name in architectures]
    num_blocks = _num_blocks(vllm_config, model_class, topology)
    if vllm_config.model_config.original_max_model_len != -1:  # -1: vLLM fits the length to the pool later
        problem = refuse_model_len(
            vllm_config.model_config.max_model_len, num_blocks, vllm_config.cache_config.block_size
        )
        if problem is not None:
            raise ConfigurationError((problem,))
    vllm_config.scheduler_config.verify_max_model_len(vllm_config.model_config.max_model_len)

    result = ResolvedConfig(
        device=host.device,
        architecture=architecture,
        model_class=target,
        topology=topology,
        capabilities=capabilities,
        options=options,
        num_blocks=num_blocks,
        block_size=vllm_config.cache_config.block_size,
        async_on=bool(vllm_config.scheduler_config.async_scheduling),
        chunked_prefill=vllm_config.scheduler_config.enable_chunked_prefill,
        prefix_caching=vllm_config.cache_config.enable_prefix_caching,
    )
    # A new dict: the operator's own may serve a second engine, which must not find this one's fold.
    vllm_config.additional_config = {**_additional(vllm_config), SECTION: _to_json(result)}
    if before is None:
        log.info("%s", result.describe())
    return result


def assigned_devices(vllm_config: VllmConfig) -> str | None:
    """``--device-ids`` as ``TT_VISIBLE_DEVICES`` has them; None: left out, and what the process inherited stands."""
    return bind_rank((), None, [str(number) for number in vllm_config.parallel_config.assigned_physical_gpu_ids or ()])


def _mesh(vllm_config: VllmConfig, host: Host) -> tuple[int, int]:
    named = assigned_devices(vllm_config) or host.environment.get("TT_VISIBLE_DEVICES")
    visible = visible_devices(named, host.chips())
    return parse_mesh(host.environment.get("MESH_DEVICE"), visible)


def _lane_counts(
    model_class: Any, target: str, capabilities: ModelCapabilities, mesh: tuple[int, int]
) -> tuple[int, ...]:
    """What the class says for this mesh, else what it declares for any, else what is known of tt-metal's own
    classes."""
    for_mesh = getattr(model_class, "lane_counts_for", None)
    if for_mesh is not None:
        return tuple(for_mesh(mesh))
    return capabilities.lane_counts or SINGLE_EXECUTE.get(target, ())


def _read_facts(vllm_config: VllmConfig, host: Host) -> ConfigFacts:
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    model, cache = vllm_config.model_config, vllm_config.cache_config
    backend = parallel.distributed_executor_backend
    return ConfigFacts(
        tensor_parallel_size=parallel.tensor_parallel_size,
        pipeline_parallel_size=parallel.pipeline_parallel_size,
        prefill_context_parallel_size=parallel.prefill_context_parallel_size,
        decode_context_parallel_size=parallel.decode_context_parallel_size,
        nnodes=parallel.nnodes,
        node_rank=parallel.node_rank,
        speculative=vllm_config.speculative_config is not None,
        lora=vllm_config.lora_config is not None,
        kv_transfer=vllm_config.kv_transfer_config is not None,
        executor=backend if backend is None or isinstance(backend, str) else backend.__name__,
        quantization=None if model.quantization is None else str(model.quantization),
        kv_cache_dtype=str(cache.cache_dtype),
        runner_type=model.runner_type,
        encoder_decoder=model.is_encoder_decoder,
        max_model_len=model.max_model_len,
        max_num_batched_tokens=scheduler.max_num_batched_tokens,
        async_scheduling=bool(scheduler.async_scheduling),
        chunked_prefill=bool(scheduler.enable_chunked_prefill),
        long_prefill_token_threshold=scheduler.long_prefill_token_threshold,
        prefix_caching=bool(cache.enable_prefix_caching),
        sliding_window=model.get_sliding_window(),
        user_block_size=cache.user_specified_block_size or _stored_section(vllm_config) is not None,
        max_logprobs=model.max_logprobs,
        disable_any_whitespace=vllm_config.structured_outputs_config.disable_any_whitespace,
        shutdown_timeout=vllm_config.shutdown_timeout,
        rust_frontend=host.environment.get("VLLM_USE_RUST_FRONTEND", "0").strip() not in ("", "0"),
        v2_model_runner=host.environment.get("VLLM_USE_V2_MODEL_RUNNER"),
    )


def class_problems(model_class: Any) -> tuple[str, ...]:
    """What is called on the class before there is a model (contract 3.1): checked before a mesh is opened."""
    name = model_class.__name__
    problems = []
    if getattr(model_class, "initialize_vllm_model", None) is None:
        problems.append(f"{name} has no initialize_vllm_model, which every model needs; add the classmethod")
    for hook in ("initialize_vllm_model", "lane_counts_for", "get_max_tokens_all_users", "get_kv_cache_spec"):
        found = inspect.getattr_static(model_class, hook, None)
        if found is not None and not isinstance(found, (classmethod, staticmethod)):
            kind = type(found).__name__
            problems.append(f"{name}.{hook} is a {kind} and is called on the class; make it a classmethod")
    return tuple(problems)


def _apply_topology(vllm_config: VllmConfig, topology: Topology, worker: str) -> None:
    parallel, scheduler = vllm_config.parallel_config, vllm_config.scheduler_config
    scheduler.max_num_seqs = topology.capacity
    parallel.data_parallel_size = 1
    parallel.data_parallel_size_local = 1
    parallel.data_parallel_rank = 0
    parallel.data_parallel_rank_local = 0
    parallel.data_parallel_index = 0
    parallel.data_parallel_external_lb = False
    parallel.data_parallel_hybrid_lb = False
    # vLLM has chosen "mp" for a data-parallel launch by now; one process drives the mesh (contract 8.40).
    parallel.distributed_executor_backend = "uni"
    if parallel.worker_cls == "auto":
        parallel.worker_cls = worker
    scheduler.scheduler_cls = SCHEDULER


def _num_blocks(vllm_config: VllmConfig, model_class: Any, topology: Topology) -> int:
    """KV blocks of a lane: the operator's ``--num-gpu-blocks-override``, or the model's budget (contract 3.1, 7.4)."""
    cache, model = vllm_config.cache_config, vllm_config.model_config
    if cache.num_gpu_blocks_override is not None:
        return int(cache.num_gpu_blocks_override)
    budget = getattr(model_class, "get_max_tokens_all_users", None)
    tokens = DEFAULT_TOKENS_ALL_USERS
    if budget is not None:
        tokens = budget(
            model_name=model.model,
            num_devices=topology.num_devices,
            tt_data_parallel=topology.lanes,
            max_model_len=model.max_model_len,
            max_num_seqs=topology.rows_per_lane,
        )
    hybrid = getattr(model_class, "_HYBRID_KV_CACHE_GROUPS_ENABLED", False)
    return kv_blocks(
        tokens_all_users=tokens,
        rows=topology.rows_per_lane,
        block_size=cache.block_size,
        sliding_window=model.get_sliding_window() if hybrid else None,
    )


def _additional(vllm_config: VllmConfig) -> dict[str, Any]:
    extra = vllm_config.additional_config
    return extra if isinstance(extra, dict) else {}


def _stored_section(vllm_config: VllmConfig) -> dict[str, Any] | None:
    section = _additional(vllm_config).get(SECTION)
    return section if isinstance(section, dict) else None


def _stored(vllm_config: VllmConfig) -> ResolvedConfig | None:
    section = _stored_section(vllm_config)
    if section is None:
        return None
    topology = section["topology"]
    declared = dict(section["capabilities"])
    unknown = tuple(declared.pop("unknown"))
    return ResolvedConfig(
        **{
            **section,
            "device": Device(section["device"]),
            "topology": Topology(**{**topology, "mesh": (topology["mesh"][0], topology["mesh"][1])}),
            "capabilities": attrs.evolve(read_capabilities(declared, section["model_class"]), unknown=unknown),
            "options": read_tt_options(vllm_config.additional_config),
        }
    )


def _to_json(result: ResolvedConfig) -> dict[str, Any]:
    """Plain JSON values; the options are left out, being in the operator's own section."""

    def plain(_owner: Any, _field: Any, value: Any) -> Any:
        if isinstance(value, enum.Enum):
            return value.value
        return list(value) if isinstance(value, tuple) else value

    return attrs.asdict(result, filter=lambda field, _value: field.name != "options", value_serializer=plain)
