"""Collectives between the cards of one engine (spyre contract 5.1)."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from vllm.distributed.device_communicators.base_device_communicator import DeviceCommunicatorBase

from ....domain.head_padding import STICK


class SpyreCommunicator(DeviceCommunicatorBase):
    """Host tensors go through gloo. Raises RuntimeError for a group that is not the whole world: a lowered collective
    knows no group and reduces over every card."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # Read once, so that a traced collective finds a string.
        self._name = "" if self.device_group is None else str(self.device_group.group_name)

    def _whole(self) -> None:
        if self.world_size != self.global_world_size:
            raise RuntimeError(
                f"a group of {self.world_size} of {self.global_world_size} cards cannot reduce by itself; run one "
                "tensor-parallel group over all of them"
            )

    def all_reduce(self, input_: Tensor) -> Tensor:
        if self.world_size == 1:
            return input_
        if input_.device.type == "cpu":
            dist.all_reduce(input_, group=self.cpu_group)
            return input_
        self._whole()
        if torch.compiler.is_compiling():
            # In place it would be a mutation that an opaque operation hides from the compiler (contract 8.36).
            reduced = torch.ops._c10d_functional.all_reduce(input_, "sum", self._name)
            waited: Tensor = torch.ops._c10d_functional.wait_tensor(reduced)
            return waited
        dist.all_reduce(input_, group=self.device_group)
        return input_

    def all_gather(self, input_: Tensor, dim: int = -1) -> Tensor:
        """Ranks along ``dim``, in order. A width that is no multiple of a stick is padded for the way: the transfer
        cuts tails off, and rank 1's part would begin some lanes early (contract 8.24)."""
        if self.world_size == 1:
            return input_
        if input_.device.type == "cpu":
            return self._gathered(input_, dim, self.cpu_group)
        self._whole()
        if torch.compiler.is_compiling():
            raise NotImplementedError("all_gather does not run in a compiled graph on Spyre; gather outside of it")
        width = input_.shape[-1]
        pad = -width % STICK
        if not pad:
            return self._gathered(input_, dim, self.device_group)
        wide = torch.nn.functional.pad(input_, (0, pad))
        parts = [torch.empty_like(wide) for _ in range(self.world_size)]
        dist.all_gather(parts, wide, group=self.device_group)
        return torch.cat([part.to("cpu")[..., :width] for part in parts], dim=dim).to(input_.device)

    def _gathered(self, input_: Tensor, dim: int, group: Any) -> Tensor:
        whole = input_.contiguous()
        parts = [torch.empty_like(whole) for _ in range(self.world_size)]
        dist.all_gather(parts, whole, group=group)
        return torch.cat(parts, dim=dim)

    def reduce_scatter(self, input_: Tensor, dim: int = -1) -> Tensor:
        if self.world_size == 1:
            return input_
        raise NotImplementedError(
            "the cards have no reduce_scatter; leave sequence parallelism and what else needs it out"
        )
