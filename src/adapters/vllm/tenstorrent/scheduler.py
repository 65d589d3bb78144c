"""The coordinator with the Tenstorrent platform's settings."""
from __future__ import annotations

from typing import Any

from ....domain.phase import Cadence
from ....domain.sampling_path import SamplingRules
from ..coordinator import Coordinator
from ..settings import EngineSettings
from .config import resolved


def engine_settings(vllm_config: Any) -> EngineSettings:
    """The settings that the platform resolved. Raises where its hook did not run."""
    config = resolved(vllm_config)
    options = config.options
    return EngineSettings(
        lanes=config.topology.lanes,
        rows_per_lane=config.topology.rows_per_lane,
        cadence=Cadence(
            enabled=options.decode_interleave_enabled,
            prefill_steps=options.decode_interleave_prefill_steps,
            decode_steps=options.decode_interleave_decode_steps,
        ),
        sampling=SamplingRules(
            mode=config.sample_on_device,
            capabilities=config.capabilities,
            vocab_size=vllm_config.model_config.get_vocab_size(),
        ),
    )


class TTScheduler(Coordinator):
    def read_settings(self, vllm_config: Any) -> EngineSettings:
        return engine_settings(vllm_config)
