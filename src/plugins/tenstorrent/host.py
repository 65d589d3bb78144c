"""What the platform reads from this host: environment, chips, bundle folders."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ...adapters.vllm.tenstorrent.bundles import read_bundles
from ...adapters.vllm.tenstorrent.config import Host
from ...adapters.vllm.tenstorrent.registry import ModelRegistrar
from ...domain.launch_words import launch_words, missing_checkpoint
from ...domain.model_table import EmulatedClasses
from ...domain.rules import ConfigFacts, parallel_refusals
from ...domain.selection import Device
from .chips import count_chips
from .entrypoints import selection

EMULATED_CHIPS = 32
"""Chips of the emulated machine: a Galaxy."""

WORKER = "stepshape.plugins.tenstorrent.worker.Worker"

EMULATED_CLASSES = EmulatedClasses(
    lanes="stepshape.adapters.emulator.mesh.model:EmulatedForCausalLM",
    plain="stepshape.adapters.emulator.mesh.model:EmulatedPlainForCausalLM",
)


def read_host() -> Host:
    """Read this process's environment once. The mesh is still to be checked against it."""
    chosen = selection()
    device = chosen.device or Device.REAL
    return Host(
        device=device,
        problem=chosen.problem or (_emulator_problem() if device is Device.EMULATED else None),
        chips=(lambda: EMULATED_CHIPS) if device is Device.EMULATED else count_chips,
        environment=dict(os.environ),
        registrar=ModelRegistrar(device, EMULATED_CLASSES, dict(os.environ), read_bundles(_extra_models())),
        worker=WORKER,
    )


def _emulator_problem() -> str | None:
    """What is wrong with the emulator's own variables: found here, or else minutes later in the engine's process."""
    from ...adapters.emulator.mesh.faults import FAULTS_VARIABLE, FaultError, read_faults
    from ...adapters.emulator.mesh.latency import LATENCY_VARIABLE, LatencyError, read_latency

    readers: dict[str, Callable[[str], object]] = {FAULTS_VARIABLE: read_faults, LATENCY_VARIABLE: read_latency}
    for variable, read in readers.items():
        text = os.environ.get(variable, "").strip()
        try:
            if text:
                read(text)
        except (FaultError, LatencyError) as error:
            return f"{variable}: {error}"
    return None


def command_line_refusals(arguments: Sequence[str]) -> tuple[str, ...]:
    """What ``vllm serve`` would answer badly before it asks the platform (``arguments``: without the program)."""
    words = launch_words(arguments)
    problems = parallel_refusals(
        ConfigFacts(
            tensor_parallel_size=words.tensor_parallel_size, pipeline_parallel_size=words.pipeline_parallel_size
        )
    )
    if words.model is None:
        return problems
    missing = missing_checkpoint(
        words.model,
        is_folder=_is_checkpoint(Path(words.model).expanduser()),
        in_cache=_in_hub_cache(words.model),
        offline=os.environ.get("HF_HUB_OFFLINE", "").strip().upper() in ("1", "ON", "YES", "TRUE"),
    )
    return problems if missing is None else (*problems, missing)


def _is_checkpoint(folder: Path) -> bool:
    """Whether vLLM finds a config there: a folder's, or a single GGUF file."""
    return folder.is_file() or any((folder / name).is_file() for name in ("config.json", "params.json"))


def _in_hub_cache(model: str) -> bool:
    from huggingface_hub import try_to_load_from_cache
    from huggingface_hub.errors import HFValidationError

    try:
        return isinstance(try_to_load_from_cache(model, "config.json"), str)
    except HFValidationError:
        return False


def register_models() -> None:
    """Register every model that can be named before a checkpoint is known."""
    read_host().registrar.register_all()


def _extra_models() -> Path | None:
    folder = os.environ.get("EXTRA_MODELS_DIR", "").strip()
    return Path(folder) if folder else None
