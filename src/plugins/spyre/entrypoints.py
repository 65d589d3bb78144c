"""The functions vLLM's plugin groups point at.

vLLM imports this module while it is itself being imported, and calls ``platform_plugin`` in every process: the top
level is the standard library and our domain only, and the look at the machine opens nothing.
"""

from __future__ import annotations

import importlib.util
import os

from ...domain.selection import Device, Selection, select_spyre

ROUNDING = "STEPSHAPE_SPYRE_ROUNDING"
"""``off``: the emulated card keeps fp32 throughout."""
PLATFORM = "stepshape.plugins.spyre.platform.SpyrePlatform"


def selection() -> Selection:
    """Which device this process serves on, from the environment and the machine."""
    return select_spyre(os.environ, importlib.util.find_spec("torch_spyre") is not None)


def platform_plugin() -> str | None:
    """Return the platform class path, or None where the platform does not apply.

    A wrong selection still returns the path, and the platform then refuses the start with the sentence.
    """
    chosen = selection()
    if chosen.device is None:
        return None
    # torch would load torch-spyre on its own import, before a worker knows its rank; its communication library reads
    # the rank once, when it is loaded.
    os.environ.setdefault("TORCH_DEVICE_BACKEND_AUTOLOAD", "0")
    return PLATFORM


def register() -> None:
    """Join vLLM's log and put our layers in place of vLLM's; nothing where the platform is not selected. Called in
    every vLLM process."""
    chosen = selection()
    if chosen.device is None or chosen.problem is not None:
        return
    from ...adapters.telemetry.logs import join_vllm_logs
    from ...adapters.torch_spyre.layers.layer_math import SpyreLayers
    from ...adapters.vllm.releases.closing_log import expect_the_end
    from ...adapters.vllm.spyre.layers.registration import register_layers

    join_vllm_logs()
    expect_the_end()

    exact = chosen.device is Device.EMULATED and os.environ.get(ROUNDING, "").strip() == "off"
    register_layers(SpyreLayers(exact=exact))
