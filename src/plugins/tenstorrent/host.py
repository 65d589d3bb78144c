"""What the platform reads from this host: environment, chips, bundle folders."""

from __future__ import annotations

import os
from pathlib import Path

from ...adapters.vllm.tenstorrent.bundles import read_bundles
from ...adapters.vllm.tenstorrent.config import Host
from ...adapters.vllm.tenstorrent.registry import ModelRegistrar
from ...domain.model_table import EmulatedClasses
from ...domain.selection import Device
from .entrypoints import present_chips, selection

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
        problem=chosen.problem,
        chips=EMULATED_CHIPS if device is Device.EMULATED else present_chips(),
        environment=dict(os.environ),
        registrar=ModelRegistrar(device, EMULATED_CLASSES, dict(os.environ), read_bundles(_extra_models())),
        worker=WORKER,
    )


def register_models() -> None:
    """Register every model that can be named before a checkpoint is known."""
    read_host().registrar.register_all()


def _extra_models() -> Path | None:
    folder = os.environ.get("EXTRA_MODELS_DIR", "").strip()
    return Path(folder) if folder else None
