"""The functions vLLM's plugin groups point at.

vLLM imports this module while it is itself being imported, and calls ``platform_plugin`` in every process: the top
level is the standard library and our domain only, and the look at the machine opens nothing.
"""

from __future__ import annotations

import importlib.util
import os
from pathlib import Path

from ...domain.selection import Selection, select_mesh

PLATFORM = "stepshape.plugins.tenstorrent.platform.TTPlatform"
_CHIPS = Path("/dev/tenstorrent")


def present_chips() -> int:
    """Count the chips of this host by the driver's device nodes, which takes no lock on a chip; 0 without the
    driver."""
    try:
        return sum(1 for node in _CHIPS.iterdir() if node.name.isdecimal())
    except OSError:
        return 0


def selection() -> Selection:
    """Which device this process serves on, from the environment and the machine."""
    return select_mesh(os.environ, has_ttnn() and (present_chips() > 0 or simulator() is not None))


def has_ttnn() -> bool:
    """Whether ttnn is installed; nothing of it is imported. A folder of that name without code is not ttnn."""
    spec = importlib.util.find_spec("ttnn")
    return spec is not None and spec.origin is not None


def simulator() -> str | None:
    """tt-metal's simulator, which stands in for the chips, where the environment names one."""
    return os.environ.get("TT_METAL_SIMULATOR", "").strip() or None


def platform_plugin() -> str | None:
    """Return the platform class path, or None where the platform does not apply.

    A wrong selection still returns the path, and the platform then refuses the start with the sentence.
    """
    return PLATFORM if selection().device is not None else None


def register() -> None:
    """Register our models with vLLM and join its log; nothing where the platform is not selected. Called in every
    vLLM process."""
    chosen = selection()
    if chosen.device is None or chosen.problem is not None:
        return
    from ...adapters.telemetry.logs import join_vllm_logs
    from ...adapters.vllm.releases.closing_log import expect_the_end
    from .host import register_models

    join_vllm_logs()
    expect_the_end()
    register_models()
