"""The platform class vLLM asks about everything (tenstorrent contract 1.2 to 1.6).

vLLM imports this module while ``vllm.platforms`` is being resolved: ``vllm.config`` and what imports it come in
inside the hooks only.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from ...domain.rules import ConfigurationError
from ...domain.selection import Device

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.inputs import EngineInput
    from vllm.pooling_params import PoolingParams
    from vllm.sampling_params import SamplingParams
    from vllm.utils.argparse_utils import FlexibleArgumentParser

DEFAULT_ROWS = 32
"""``--max-num-seqs`` where the command line names none: the rows a device batch is made for."""


class TTPlatform(Platform):
    """A Tenstorrent mesh, real or emulated. Host tensors are CPU tensors; the mesh is behind the worker."""

    _enum = PlatformEnum.OOT
    device_name = "tt"
    device_type = "tt"
    device_control_env_var = "TT_VISIBLE_DEVICES"
    simple_compile_backend = "eager"
    supported_quantization: list[str] = []  # noqa: RUF012  (vLLM's own declaration)

    def uses_host_device_handling(self) -> bool:
        """torch has no device named tt."""
        return True

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The first one is what a float32 checkpoint is served in where ``--dtype`` is left out.

        The emulator computes in float32; with a KV cache in bfloat16 its rounding makes a text depend on what else is
        in the batch, and two requests with one seed may differ.
        """
        from .host import read_host

        usual: list[torch.dtype] = super().supported_dtypes
        return sorted(usual, key=lambda d: d is not torch.float32) if read_host().device is Device.EMULATED else usual

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "tt"

    @classmethod
    def import_kernels(cls) -> None:
        """No kernels of vLLM's own run here."""

    @classmethod
    def import_ir_kernels(cls) -> None:
        """No kernels of vLLM's own run here."""

    @classmethod
    def get_compile_backend(cls) -> str:
        """vLLM's own models do not run here; its default keeps vLLM from warning that the user turned it off."""
        return "inductor"

    @classmethod
    def inference_mode(cls) -> Any:
        return torch.no_grad()

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Called by vLLM's output thread; the worker opened the mesh and holds it."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """The host's generator is seeded by vLLM; the device draws by request."""

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def support_hybrid_kv_cache(cls) -> bool:
        """Without it vLLM makes sliding-window layers full attention."""
        return True

    @classmethod
    def check_if_supports_dtype(cls, dtype: torch.dtype) -> None:
        """The model converts its weights itself."""

    @classmethod
    def check_runner_kv_caches_multi_layer(cls) -> None:
        """Caches are the generator's, not vLLM's layers'."""

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """The block size is settled in the config hook; there is no attention backend of vLLM's to ask."""

    @classmethod
    def is_async_output_supported(cls, enforce_eager: bool | None) -> bool:
        return True

    @classmethod
    def pre_register_and_update(cls, parser: FlexibleArgumentParser | None = None) -> None:
        """Refuse what the environment alone decides, pin the V1 scheduling contract (1.3), and set our defaults on the
        command line: one API server, since lanes are folded into one engine, and the rows of a device batch."""
        from ...adapters.vllm.releases.process_exit import quick_exit, quiet_exit
        from .host import command_line_refusals, read_host

        problems = read_host().refusals()
        if parser is not None:
            problems += command_line_refusals(sys.argv[1:])
        if problems:
            if parser is not None:
                parser.error("; ".join(problems))
            raise ConfigurationError(problems)
        os.environ["VLLM_USE_V2_MODEL_RUNNER"] = "0"
        if parser is not None:
            quick_exit()
            quiet_exit()
            parser.set_defaults(max_num_seqs=DEFAULT_ROWS)
            if "--headless" not in sys.argv:  # vLLM refuses a server count beside it, whoever set it
                parser.set_defaults(api_server_count=1)

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        from ...adapters.vllm.releases.process_exit import quick_exit, quiet_exit
        from ...adapters.vllm.releases.start_up_interrupt import end_when_told_during_start_up
        from ...adapters.vllm.tenstorrent.config import check_and_update
        from . import last_config
        from .host import read_host

        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        if multiprocessing.parent_process() is not None:  # the engine's own process, where the hook runs once more
            quick_exit()
            quiet_exit()
        else:
            end_when_told_during_start_up()
        if check_and_update(vllm_config, read_host()) is not None:
            last_config.keep(vllm_config)

    @classmethod
    def validate_request(cls, processed_inputs: EngineInput, params: SamplingParams | PoolingParams) -> None:
        """Raises vLLM's validation error, which becomes an HTTP 400, for what the mesh cannot serve."""
        from ...adapters.vllm.tenstorrent.requests import check_request
        from . import last_config

        vllm_config = last_config.get()
        if vllm_config is not None:
            check_request(processed_inputs, params, vllm_config)
