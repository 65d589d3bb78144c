"""``torch.spyre``: what torch and its libraries look for under a device's name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import ModuleType

import torch

Device = torch.device | str | int | None


def index_of(device: Device) -> int:
    """The card's index; None is the current card."""
    if device is None:
        return int(torch.accelerator.current_device_index())
    if isinstance(device, int):
        return device
    index = torch.device(device).index
    return int(torch.accelerator.current_device_index()) if index is None else int(index)


def device_module(shim: ModuleType) -> ModuleType:
    """Make the module that is registered as ``torch.spyre``. Streams, events and memory are ``torch.accelerator``'s."""
    module = ModuleType("torch.spyre", "The emulated Spyre card.")

    def is_available() -> bool:
        return True

    def is_initialized() -> bool:
        return True

    def init() -> None:
        return

    def _is_in_bad_fork() -> bool:
        return False

    def device_count() -> int:
        return int(shim.card_count())

    def current_device() -> int:
        return int(torch.accelerator.current_device_index())

    def set_device(device: Device) -> None:
        torch.accelerator.set_device_index(index_of(device))

    @contextlib.contextmanager
    def device(card: Device) -> Iterator[None]:
        before = current_device()
        set_device(card)
        try:
            yield
        finally:
            set_device(before)

    def synchronize(device: Device = None) -> None:
        torch.accelerator.synchronize(index_of(device))

    def current_stream(device: Device = None) -> torch.Stream:
        return torch.accelerator.current_stream(index_of(device))

    def set_stream(stream: torch.Stream) -> None:
        torch.accelerator.set_stream(stream)

    def generator(device: Device = None) -> torch.Generator:
        made: torch.Generator = shim.default_generator(index_of(device))
        return made

    def manual_seed(seed: int) -> None:
        generator().manual_seed(seed)

    def manual_seed_all(seed: int) -> None:
        for index in range(device_count()):
            generator(index).manual_seed(seed)

    def initial_seed() -> int:
        return generator().initial_seed()

    def get_rng_state(device: Device = None) -> torch.Tensor:
        return generator(device).get_state()

    def set_rng_state(state: torch.Tensor, device: Device = None) -> None:
        generator(device).set_state(state)

    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.float16, torch.bfloat16]

    def mem_get_info(device: Device = None) -> tuple[int, int]:
        free, total = torch.accelerator.get_memory_info(index_of(device))
        return int(free), int(total)

    for function in (
        is_available, is_initialized, init, _is_in_bad_fork, device_count, current_device, set_device, device,
        synchronize, current_stream, set_stream, manual_seed, manual_seed_all, initial_seed, get_rng_state,
        set_rng_state, get_amp_supported_dtype, mem_get_info,
    ):  # fmt: skip
        setattr(module, function.__name__, function)
    for name in ("empty_cache", "memory_allocated", "max_memory_allocated", "memory_reserved", "memory_stats"):
        setattr(module, name, getattr(torch.accelerator, name))
    module.__dict__.update(Stream=torch.Stream, Event=torch.Event)
    return module
