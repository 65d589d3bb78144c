"""The platform class vLLM asks about everything (spyre contract 1.3 to 1.5 and 11).

vLLM imports this module while ``vllm.platforms`` is being resolved: ``vllm.config`` and what imports it come in inside
the hooks only. The base is vLLM's plain ``Platform``: its CPU platform turns asynchronous scheduling off, starts a
process more and edits the environment.
"""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import torch
from vllm.platforms.interface import Platform, PlatformEnum

from ...domain.rules import ConfigurationError
from ...domain.spyre_rules import MAX_MODEL_LEN, MAX_NUM_SEQS

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.utils.argparse_utils import FlexibleArgumentParser

BACKEND = "stepshape.adapters.vllm.spyre.attention_backend.SpyreAttentionBackend"


class SpyrePlatform(Platform):
    """Integers, scheduling and sampling are on the host, which is vLLM's device here; the runner knows the card."""

    _enum = PlatformEnum.OOT
    device_name = "cpu"
    device_type = "cpu"
    dispatch_key = "PrivateUse1"
    dist_backend = "cpu:gloo,spyre:spyreccl"
    device_control_env_var = "SPYRE_DEVICES"
    simple_compile_backend = "eager"
    supported_quantization: list[str] = []  # noqa: RUF012  (vLLM's own declaration)

    @property
    def supported_dtypes(self) -> list[torch.dtype]:
        """The first is what a checkpoint of any type is served in where the user names none. fp32 is there for the
        architectures that vLLM gives no fp16; the hook then sets fp16, and refuses fp32 to all others."""
        return [torch.float16, torch.float32]

    @classmethod
    def get_device_name(cls, device_id: int = 0) -> str:
        return "torch-spyre"

    @classmethod
    def get_device_total_memory(cls, device_id: int = 0) -> int:
        return 128 << 30

    @classmethod
    def import_kernels(cls) -> None:
        """No kernels of vLLM's own run here."""

    @classmethod
    def get_compile_backend(cls) -> str:
        """vLLM's default, which keeps it from saying that the user turned it off; our blocks name their own."""
        return "inductor"

    @classmethod
    def opaque_attention_op(cls) -> bool:
        """Attention is one operation in a compiled block, in which our kernels run."""
        return True

    @classmethod
    def use_custom_op_collectives(cls) -> bool:
        """vLLM's opaque all_reduce declares no mutation and makes one, which spoils compiled results."""
        return False

    @classmethod
    def get_device_communicator_cls(cls) -> str:
        return "stepshape.adapters.vllm.spyre.communicator.SpyreCommunicator"

    @classmethod
    def get_attn_backend_cls(cls, *args: Any, **kwargs: Any) -> str:
        from vllm.v1.attention.backends.registry import AttentionBackendEnum, register_backend

        register_backend(AttentionBackendEnum.CUSTOM, BACKEND)
        return BACKEND

    @classmethod
    def check_max_model_len(cls, max_model_len: int) -> int:
        """vLLM asks only where the user named no length."""
        return min(max_model_len, MAX_MODEL_LEN)

    @classmethod
    def set_device(cls, device: torch.device) -> None:
        """Called by vLLM's output thread, which touches host tensors only."""

    @classmethod
    def manual_seed_all(cls, seed: int) -> None:
        """Sampling draws on the host, whose generator vLLM seeds."""

    @classmethod
    def is_pin_memory_available(cls) -> bool:
        return False

    @classmethod
    def is_async_output_supported(cls, enforce_eager: bool | None) -> bool:
        return True

    @classmethod
    def update_block_size_for_backend(cls, vllm_config: VllmConfig) -> None:
        """The block size is settled in the config hook."""

    @classmethod
    def pre_register_and_update(cls, parser: FlexibleArgumentParser | None = None) -> None:
        """Refuse what the environment alone decides, pin the V1 runner, keep the default number of sequences small."""
        from ...adapters.vllm.releases.batch_defaults import cap_default_sequences
        from ...adapters.vllm.releases.process_exit import quick_exit, quiet_exit
        from .host import read_host

        problems = read_host().refusals()
        if problems:
            if parser is not None:
                parser.error("; ".join(problems))
            raise ConfigurationError(problems)
        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        cap_default_sequences(MAX_NUM_SEQS)
        if parser is not None:
            quick_exit()
            quiet_exit()

    @classmethod
    def apply_config_platform_defaults(cls, vllm_config: VllmConfig) -> None:
        from ...adapters.vllm.spyre.config import apply_defaults
        from .host import read_host

        os.environ.setdefault("VLLM_USE_V2_MODEL_RUNNER", "0")
        apply_defaults(vllm_config, read_host())

    @classmethod
    def check_and_update_config(cls, vllm_config: VllmConfig) -> None:
        from ...adapters.vllm.releases.process_exit import quick_exit, quiet_exit
        from ...adapters.vllm.releases.start_up_interrupt import end_when_told_during_start_up
        from ...adapters.vllm.releases.teardown import spare_absent_accelerator
        from ...adapters.vllm.spyre.config import check_and_update
        from .host import read_host

        if multiprocessing.parent_process() is not None:  # the engine's own process, where the hook runs once more
            quick_exit()
            quiet_exit()
        else:
            end_when_told_during_start_up()
        if vllm_config.parallel_config.world_size > 1:  # the workers have the cards, the engine's process has none
            spare_absent_accelerator()
        check_and_update(vllm_config, read_host())
