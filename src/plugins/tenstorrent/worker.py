"""The composition root of a mesh engine: which mesh, which model class, which telemetry."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import torch
from vllm.v1.kv_cache_interface import KVCacheSpec

from ...adapters.telemetry.step_log import StepLog
from ...adapters.ttnn.model_contract import ContractGenerator
from ...adapters.vllm.tenstorrent.config import ResolvedConfig, assigned_devices
from ...adapters.vllm.tenstorrent.registry import load_class
from ...adapters.vllm.tenstorrent.worker import TTWorker
from ...domain.selection import Device
from ...domain.tt_options import TraceMode
from ...ports.generator import Generator
from ...ports.mesh import Mesh
from ...ports.telemetry import Telemetry
from .host import EMULATED_CHIPS

REPORT_VARIABLE = "STEPSHAPE_STEP_REPORT"
"""Names a file that gets the sums over all steps, as JSON, when the worker closes."""


class Worker(TTWorker):
    def open_mesh(self, config: ResolvedConfig) -> Mesh:
        if config.device is Device.EMULATED:
            from ...adapters.emulator.mesh.device import open_emulated_mesh

            return open_emulated_mesh(
                config.topology.mesh, available=EMULATED_CHIPS, seed=self.model_config.seed, environment=os.environ
            )
        # Before ttnn is imported: it reads the visible chips once (contract 7.3).
        assigned = assigned_devices(self.vllm_config)
        if assigned is not None:
            os.environ["TT_VISIBLE_DEVICES"] = assigned
        from ...adapters.ttnn.mesh import MeshSettings, open_mesh

        options, capabilities = config.options, config.capabilities
        return open_mesh(
            MeshSettings(
                shape=config.topology.mesh,
                fabric_config=options.fabric_config,
                fabric_reliability_mode=options.fabric_reliability_mode,
                model_fabric=capabilities.fabric_config,
                dispatch_core_axis=options.dispatch_core_axis,
                trace_region_size=0 if options.trace_mode is TraceMode.NONE else options.trace_region_size,
                worker_l1_size=options.worker_l1_size or 0,
                l1_small_size=options.l1_small_size or 0,
                num_command_queues=capabilities.num_command_queues,
            )
        )

    def build_generator(self, config: ResolvedConfig, mesh: Mesh) -> Generator[torch.Tensor]:
        model_class: Any = load_class(config.model_class)
        # A model takes its dtype from the config it is given; --dtype is vLLM's, and vLLM keeps it beside that config.
        hf_config = copy.copy(self.model_config.hf_config)
        hf_config.dtype = self.model_config.dtype
        model = model_class.initialize_vllm_model(
            hf_config,
            mesh.handle,
            config.topology.capacity,
            max_seq_len=self.model_config.max_model_len,
            tt_data_parallel=config.topology.lanes,
            optimizations=None if config.options.optimizations is None else config.options.optimizations.value,
        )
        mode = config.options.trace_mode
        return ContractGenerator(
            model,
            mesh,
            config.capabilities,
            trace_prefill=mode is TraceMode.ALL,
            trace_decode=mode is not TraceMode.NONE,
        )

    def kv_cache_spec(self, config: ResolvedConfig) -> dict[str, KVCacheSpec] | None:
        hook = getattr(load_class(config.model_class), "get_kv_cache_spec", None)
        if hook is None:
            return None
        spec = hook(self.vllm_config)
        if spec is not None and not isinstance(spec, dict):
            raise TypeError(
                f"{config.model_class}.get_kv_cache_spec returned a {type(spec).__name__}; return a dict of layer name "
                "to KVCacheSpec, or None"
            )
        own: dict[str, KVCacheSpec] | None = spec
        return own

    def telemetry(self, config: ResolvedConfig) -> Telemetry:
        report = os.environ.get(REPORT_VARIABLE, "").strip()
        return StepLog(lanes=config.topology.lanes, report=Path(report) if report else None)
