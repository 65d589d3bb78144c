"""``stepshape doctor``: what of a Tenstorrent set-up is in this environment, what is missing, and the mend."""

from __future__ import annotations

import importlib.metadata
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

from ...domain.diagnosis import DeviceFacts, Facts, State, diagnose, diagnose_device
from ...domain.selection import TT_DEVICE
from ..tenstorrent.entrypoints import has_ttnn, present_chips, simulator

PACKAGES = ("ttnn", "torch", "vllm", "numpy", "opencv-python-headless")
_SYSFS = Path("/sys/class/tenstorrent")
NO_DEVICE = 2
"""exit status of every command that wants a device where there is none"""


def doctor(*, look_at_device: bool) -> int:
    """Print the findings. Return 0, 1 where something is missing, 2 where all that is missing is a device."""
    findings = diagnose(read_environment())
    device = read_device() if look_at_device else None
    for finding in [*findings, *([] if device is None else diagnose_device(device))]:
        mend = f"\n         mend: {finding.mend}" if finding.mend else ""
        print(f"{finding.state.value:8} {finding.what}{mend}")
    if device is not None and device.reason is not None:
        return NO_DEVICE
    return int(any(finding.state is State.MISSING for finding in findings))


def read_environment() -> Facts:
    """This process's environment."""
    return Facts(
        python=(sys.version_info.major, sys.version_info.minor),
        versions={name: _version(name) for name in PACKAGES},
        cuda_trace=_cuda_trace(),
        platform_plugins=_names("vllm.platform_plugins"),
        general_plugins=_names("vllm.general_plugins"),
        allowed_plugins=os.environ.get("VLLM_PLUGINS"),
        emulated=bool(os.environ.get(TT_DEVICE, "").strip()),
    )


def why_no_device() -> str | None:
    """Why there can be no device here, told without ttnn; None: there may be one."""
    if not has_ttnn():
        return "ttnn is not installed; activate the tt-metal environment"
    if present_chips() == 0 and simulator() is None:
        return "/dev/tenstorrent has no chip; load the driver (tt-kmd), or name a simulator with TT_METAL_SIMULATOR"
    return None


def read_device() -> DeviceFacts:
    """The chips, looked at in a child process."""
    nodes = present_chips()
    reason = why_no_device()
    if reason is not None:
        return DeviceFacts(nodes=nodes, reason=reason)
    from ...adapters.ttnn.discovery import DiscoveryError, look_at_machine

    try:
        machine = look_at_machine()
    except DiscoveryError as error:
        return DeviceFacts(nodes=nodes, reason=str(error))
    return DeviceFacts(
        nodes=nodes,
        simulator=simulator(),
        chips=machine.chips,
        cluster=machine.cluster,
        arch=machine.arch,
        firmware=read_firmware(_SYSFS),
    )


def read_firmware(folder: Path) -> list[str]:
    """The firmware bundle's version of every card that the driver tells it for; [] where it tells none."""
    found = []
    for path in sorted(folder.glob("*/tt_fw_bundle_ver")):
        try:
            found.append(path.read_text(encoding="ascii").strip())
        except (OSError, UnicodeDecodeError):
            continue
    return found


def _version(name: str) -> str | None:
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _names(group: str) -> Sequence[str]:
    return [point.name for point in importlib.metadata.entry_points(group=group)]


def _cuda_trace() -> str | None:
    """A compiled kernel or a CUDA requirement of vLLM's, as the set-up script looks for them."""
    try:
        vllm = importlib.metadata.distribution("vllm")
    except importlib.metadata.PackageNotFoundError:
        return None
    kernels = [str(file) for file in vllm.files or () if re.fullmatch(r"vllm/(.*/)?_\w*C\w*(\.[\w-]+)*\.so", str(file))]
    wants = [
        line.split(";")[0].strip()
        for line in vllm.requires or ()
        if line.startswith(("nvidia-", "flashinfer")) and "extra ==" not in line
    ]
    return next(iter([*kernels, *wants]), None)


