"""The process group ``spyreccl`` of the emulated card: collectives staged through gloo, held against the card's rules.

Torch lets Python stand in for a whole process group, not for one device's part of it; so this one carries host tensors
too, which gloo takes as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import ProcessGroup, ProcessGroupGloo, Work

from .checks import check_collective

NAME = "spyreccl"


def register_spyreccl() -> None:
    """Make torch know the backend in this process; a second call changes nothing."""
    if NAME.upper() not in dist.Backend._plugins:
        dist.Backend.register_backend(NAME, _create, devices=["spyre"])


def _create(store: Any, rank: int, size: int, timeout: timedelta) -> ProcessGroup:
    return StagedGroup(ProcessGroupGloo(store, rank, size, timeout), rank, size)


class Done(Work):
    """Collectives here are over when they return. ``result``: what torch's futures hand on."""

    def __init__(self, result: Any) -> None:
        super().__init__()
        self._result = result

    def wait(self, timeout: timedelta | None = None) -> bool:
        return True

    def is_completed(self) -> bool:
        return True

    def get_future(self) -> Any:
        future: Any = torch.futures.Future()
        future.set_result(self._result)
        return future


class StagedGroup(ProcessGroup):
    """Offers what the card's library has; gathering goes into a list."""

    def __init__(self, gloo: Any, rank: int, size: int) -> None:
        base: Any = super()
        base.__init__(rank, size)
        self._gloo = gloo
        self._size = size

    def getBackendName(self) -> str:  # noqa: N802  (torch's)
        return NAME

    @property
    def pg_name(self) -> str:
        """Empty once torch has forgotten the group."""
        return str(dist.distributed_c10d._world.pg_names.get(self, ""))

    @property
    def group_name(self) -> str:
        return self.pg_name

    def allreduce(self, tensors: Sequence[Tensor], options: Any) -> Work:  # type: ignore[override]
        return self._in_place("all_reduce", self._gloo.allreduce, tensors, options)

    def broadcast(self, tensors: Sequence[Tensor], options: Any) -> Work:  # type: ignore[override]
        return self._in_place("broadcast", self._gloo.broadcast, tensors, options)

    def allgather(  # type: ignore[override]
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], options: Any
    ) -> Work:
        return self._gathered("all_gather", self._gloo.allgather, outputs, tensors, options)

    def gather(  # type: ignore[override]
        self, outputs: Sequence[Sequence[Tensor]], tensors: Sequence[Tensor], options: Any
    ) -> Work:
        return self._gathered("gather", self._gloo.gather, outputs, tensors, options)

    def send(self, tensors: Sequence[Tensor], rank: int, tag: int) -> Work:
        self._check("send", tensors)
        self._gloo.send([each.to("cpu") for each in tensors], rank, tag).wait()
        return Done(tensors)

    def recv(self, tensors: Sequence[Tensor], rank: int, tag: int) -> Work:
        return self._in_place("recv", lambda staged, _: self._gloo.recv(staged, rank, tag), tensors, None)

    def barrier(self, opts: Any = None) -> Work:
        self._gloo.barrier(opts).wait()
        return Done([])

    def _check(self, operator: str, tensors: Sequence[Tensor]) -> None:
        for tensor in tensors:
            if tensor.device.type == "spyre":
                check_collective(operator, tensor, self._size, dist.get_world_size())

    def _gathered(
        self,
        operator: str,
        call: Callable[..., Any],
        outputs: Sequence[Sequence[Tensor]],
        tensors: Sequence[Tensor],
        options: Any,
    ) -> Work:
        self._check(operator, tensors)
        staged = [[torch.empty_like(each, device="cpu") for each in row] for row in outputs]
        call(staged, [each.to("cpu") for each in tensors], options).wait()
        for row, host in zip(outputs, staged, strict=True):
            for out, each in zip(row, host, strict=True):
                out.copy_(each)
        return Done(outputs)

    def _in_place(
        self, operator: str, call: Callable[[list[Tensor], Any], Any], tensors: Sequence[Tensor], options: Any
    ) -> Work:
        self._check(operator, tensors)
        staged = [each.to("cpu") for each in tensors]
        call(staged, options).wait()
        for each, host in zip(tensors, staged, strict=True):
            if each is not host:
                each.copy_(host)
        return Done(tensors)
