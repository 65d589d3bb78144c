"""Brings the emulated card into this process: build, registration, switches."""

from __future__ import annotations

import os
import sys
from types import ModuleType
from typing import Any

import attrs
import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from ....domain.spyre_limits import LimitBroken, limit_named
from .build import ShimError, built_shim
from .checks import Call, judge
from .counters import Counters, Tally
from .coverage import EXACT, Verdict, plain_name
from .device_module import device_module
from .switches import read_switches

NAME = "spyre"
MEMORY_BYTES = 128 << 30
"""Memory of a card, where the host has twice as much: the emulated card keeps four bytes for each float16."""
FRAMES_OF_PRINTING = 8
"""How deep below torch's text of a tensor its operators are called."""


@attrs.define
class _Loaded:
    shim: ModuleType | None = None
    tally: Tally = attrs.field(factory=Tally)


_LOADED = _Loaded()
"""One device a process: torch has one name for a device of its own and lets nobody give it back."""


def load() -> ModuleType:
    """Register the device ``spyre``, built first if this is the first use; return the shim. Calling again does nothing.

    Raises :class:`ShimError` where the build fails or the process already has a Spyre device or another one, and
    :class:`SwitchError` where a variable of the environment is not understood.
    """
    if _LOADED.shim is not None:
        return _LOADED.shim
    taken = torch._C._get_privateuse1_backend_name()
    if "torch_spyre" in sys.modules or taken not in ("privateuseone", NAME):
        other = "torch_spyre" if "torch_spyre" in sys.modules else taken
        raise ShimError(
            f"{other} is already this process's device and an emulated Spyre card cannot stand beside it; unset "
            "STEPSHAPE_SPYRE_DEVICE to use the real one, or set TORCH_DEVICE_BACKEND_AUTOLOAD=0"
        )
    switches = read_switches(os.environ)
    shim = built_shim()
    rename_privateuse1_backend(NAME)
    exact = sorted(f"aten::{name}" for name in _both_forms(EXACT))
    shim.register(switches.cards, min(MEMORY_BYTES, _host_bytes() // 2), exact)
    register: Any = torch._register_device_module
    register(NAME, device_module(shim))
    shim.set_checker(_check, _refuse)
    _LOADED.shim = shim
    if switches.pin_thread:
        torch.set_num_threads(1)
    set_rounding(switches.rounding)
    set_fill(switches.fill)
    return shim


def loaded_shim() -> ModuleType:
    """The shim, once loaded. Raises RuntimeError before."""
    if _LOADED.shim is None:
        raise RuntimeError(
            "the emulated Spyre device is not loaded; call stepshape.adapters.emulator.spyre.load() first"
        )
    return _LOADED.shim


def is_loaded() -> bool:
    return _LOADED.shim is not None


def set_rounding(on: bool) -> None:
    """Whether float16 and bfloat16 results are rounded to their type; off: float32 throughout."""
    loaded_shim().set_rounding(on)


def rounding() -> bool:
    return bool(loaded_shim().rounding())


def set_fill(byte: int | None) -> None:
    """What fresh memory is filled with, 0 to 255; None leaves it as it comes."""
    if byte is not None and not 0 <= byte <= 255:
        raise ValueError(f"a fill of {byte} is no byte; use 0 to 255, or None for no fill")
    loaded_shim().set_fill(-1 if byte is None else byte)


def tally() -> Tally:
    """Where Python's counts go."""
    return _LOADED.tally


def counters() -> Counters:
    """What this process made its cards do."""
    return _LOADED.tally.read(loaded_shim())


def reset_counters(*, compiled: bool = False) -> None:
    """Set every count to 0. ``compiled`` True: also forget which eager signatures have an artifact."""
    _LOADED.tally.reset(loaded_shim(), compiled=compiled)


def _check(name: str, _: str, arguments: list[object]) -> int:
    if _is_printing():
        return Verdict.UNJUDGED
    call = Call(plain_name(name), arguments, eager=True, rounding=rounding())
    verdict = judge(call)
    if verdict is Verdict.KERNEL:
        _LOADED.tally.eager_kernels[call.name, call.shape()] += 1
    return verdict


def _is_printing() -> bool:
    """True where torch is making a tensor's text: it asks for operators no card has, and every debugger asks for it."""
    frame = sys._getframe(2)
    for _ in range(FRAMES_OF_PRINTING):
        if frame.f_code.co_filename == torch._tensor_str.__file__:
            return True
        if frame.f_back is None:
            return False
        frame = frame.f_back
    return False


def _refuse(rule: str, detail: str) -> None:
    if not _is_printing():
        raise LimitBroken(limit_named(rule), detail)


def _both_forms(names: frozenset[str]) -> set[str]:
    return {form for name in names for form in (name, f"{name}_")}


def _host_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
