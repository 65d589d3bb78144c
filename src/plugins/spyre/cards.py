"""Loading the card, emulated or real. Nothing of the one is touched where the other is used."""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable, Mapping
from typing import Any

import attrs
import torch


@attrs.frozen(eq=False, kw_only=True)
class OpenedCard:
    device: torch.device
    backend: Callable[..., Any]
    """for ``torch.compile``"""
    events: Callable[[], Mapping[str, int]]
    """running counts of what the card did"""
    exact: bool
    """the card keeps fp32 under the name of fp16"""


def open_emulated(index: int, ranks: int) -> OpenedCard:
    """The emulated card ``index`` of at least as many as there are ``ranks``."""
    from ...adapters.emulator.spyre import checking_backend, counters, load, rounding
    from ...adapters.emulator.spyre.collectives import register_spyreccl
    from ...adapters.emulator.spyre.switches import CARDS

    os.environ.setdefault(CARDS, str(max(ranks, index + 1)))
    load()
    register_spyreccl()
    torch.accelerator.set_device_index(index)
    return OpenedCard(
        device=torch.device("spyre", index),
        backend=checking_backend(),
        events=lambda: counters().flat(),
        exact=not rounding(),
    )


def open_real(index: int) -> OpenedCard:
    """The real card ``index``, through torch-spyre. Raises RuntimeError if it cannot be loaded."""
    try:
        torch_spyre: Any = importlib.import_module("torch_spyre")
        torch_spyre._autoload()
    except ImportError as missing:
        raise RuntimeError(
            f"torch-spyre cannot be loaded ({missing}); install it, or serve on the emulated card with "
            "STEPSHAPE_SPYRE_DEVICE=emulated"
        ) from missing
    torch.accelerator.set_device_index(index)
    from torch._dynamo import lookup_backend

    return OpenedCard(
        device=torch.device("spyre", index), backend=lookup_backend("inductor"), events=dict, exact=False
    )
