"""What every test shares: an environment that asks no network, and the real model."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

if TYPE_CHECKING:
    import torch

ROOT = Path(__file__).resolve().parents[1]

# Before any test imports the libraries that read them.
os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
os.environ.setdefault("DO_NOT_TRACK", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# vLLM asks for its platform while it is imported; every test that needs one needs this one.
os.environ.setdefault("STEPSHAPE_TT_DEVICE", "emulated")

# A shell that starts us in the background has SIGINT ignored, and so would every process that a test interrupts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# A loaded machine is no failure; hypothesis has a profile of its own where CI is set, without deadline either.
settings.register_profile("here", deadline=None)
if "CI" not in os.environ:
    settings.load_profile("here")


@pytest.fixture(scope="session")
def smollm2() -> Path:
    """The folder of SmolLM2-135M-Instruct, converted once a clone; the same one that `make demo` serves."""
    from stepshape.adapters.checkpoints.smollm2 import convert, packaged_gguf

    folder = ROOT / "models" / "smollm2"
    convert(packaged_gguf(), folder, lambda what, done, total: None)
    return folder


@pytest.fixture
def spyre_card() -> Iterator[torch.device]:
    """An emulated Spyre card, as it comes: it rounds, fresh memory is NaN, nothing is counted or compiled yet."""
    import torch

    from stepshape.adapters.emulator import spyre

    spyre.load()
    spyre.set_rounding(True)
    spyre.set_fill(0xFF)
    torch._dynamo.reset()
    spyre.reset_counters(compiled=True)
    yield torch.device("spyre")
    spyre.set_rounding(True)
    spyre.set_fill(0xFF)
