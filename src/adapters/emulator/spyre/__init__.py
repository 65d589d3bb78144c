"""An emulated Spyre card: a device of torch named ``spyre`` that computes on the CPU and keeps the card's rules.

``load()`` registers it; ``checking_backend(name)`` is the backend for ``torch.compile``; ``counters()`` tells what was
compiled, copied and handed to the host.
"""

from .build import ShimError
from .checks import check_collective
from .compile_backend import CheckingBackend, checking_backend
from .counters import Counters
from .device import counters, is_loaded, load, reset_counters, rounding, set_fill, set_rounding

__all__ = [
    "load",
    "is_loaded",
    "checking_backend",
    "CheckingBackend",
    "counters",
    "reset_counters",
    "Counters",
    "set_rounding",
    "rounding",
    "set_fill",
    "check_collective",
    "ShimError",
]
