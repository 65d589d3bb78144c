"""What `stepshape doctor` makes of an environment: each thing found, or missing with its mend.

Field cases 44 and 45.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Mapping, Sequence

import attrs

TTNN_READ = "0.81.1"
"""The release of ttnn that the adapter was written against."""
VLLM_TRIED = ((0, 26), (0, 33))
"""First and last minor release of vLLM that the plugin was tried with."""
SET_UP = "python scripts/set_up_tt_metal.py"

PLATFORM_ENTRY = "stepshape_tt"
ENTRY_POINTS: Mapping[str, str] = {
    PLATFORM_ENTRY: "vllm.platform_plugins",
    "stepshape_tt_models": "vllm.general_plugins",
}
"""Our entry points and their groups."""


class State(enum.Enum):
    FOUND = "found"
    NOTE = "note"
    """works, or may work; worth knowing"""
    MISSING = "missing"


@attrs.frozen
class Finding:
    state: State
    what: str
    mend: str = ""


@attrs.frozen(kw_only=True)
class Facts:
    """An environment as it was read. A version is None where the package is not installed."""

    python: tuple[int, int]
    versions: Mapping[str, str | None]
    cuda_trace: str | None = None
    """what says that vLLM was built for CUDA"""
    platform_plugins: Sequence[str] = ()
    """names in vLLM's group of platforms, ours and others'"""
    general_plugins: Sequence[str] = ()
    allowed_plugins: str | None = None
    """``VLLM_PLUGINS``"""
    emulated: bool = False
    """``STEPSHAPE_TT_DEVICE`` selects the emulated mesh"""


@attrs.frozen(kw_only=True)
class DeviceFacts:
    """The chips as they were looked at. ``reason`` is a sentence where there is none to be used."""

    nodes: int
    simulator: str | None = None
    chips: int = 0
    cluster: str = ""
    arch: str = ""
    firmware: Sequence[str] = ()
    """of each card that says it"""
    reason: str | None = None


def diagnose(facts: Facts) -> list[Finding]:
    """Everything but the device."""
    findings = [Finding(State.FOUND, f"Python {facts.python[0]}.{facts.python[1]}"), _ttnn(facts), _torch(facts)]
    findings += [_vllm(facts), _numpy(facts)]
    opencv = _opencv(facts)
    if opencv is not None:
        findings.append(opencv)
    return findings + _entry_points(facts) + _plugins(facts)


def diagnose_device(device: DeviceFacts) -> list[Finding]:
    """What there is to run on."""
    if device.reason is not None:
        return [Finding(State.MISSING, f"no Tenstorrent device: {device.reason}")]
    where = f"simulator {device.simulator}" if device.simulator else _many(device.nodes, "device node")
    findings = [
        Finding(State.FOUND, f"{_many(device.chips, 'chip')}, cluster {device.cluster}, {device.arch} ({where})")
    ]
    if device.firmware:
        findings.append(Finding(State.FOUND, f"firmware {', '.join(sorted(set(device.firmware)))}"))
    else:
        findings.append(Finding(State.NOTE, "firmware version not readable", "ask tt-smi"))
    return findings


def _ttnn(facts: Facts) -> Finding:
    version = facts.versions.get("ttnn")
    if version is None:
        return Finding(
            State.MISSING,
            "ttnn is not installed",
            "activate the tt-metal environment, or: pip install ttnn (Python 3.10 or 3.12)",
        )
    if version != TTNN_READ:
        return Finding(
            State.NOTE,
            f"ttnn {version}; Stepshape was written against {TTNN_READ}",
            "make test-ttnn tells what differs",
        )
    return Finding(State.FOUND, f"ttnn {version}")


def _torch(facts: Facts) -> Finding:
    version = facts.versions.get("torch")
    if version is None:
        return Finding(State.MISSING, "torch is not installed", f"{SET_UP} installs what vLLM needs")
    return Finding(State.FOUND, f"torch {version}")


def _vllm(facts: Facts) -> Finding:
    version = facts.versions.get("vllm")
    if version is None:
        return Finding(State.MISSING, "vLLM is not installed", SET_UP)
    if facts.cuda_trace is not None:
        return Finding(
            State.MISSING,
            f"vLLM {version} was built for CUDA ({facts.cuda_trace})",
            f"pip uninstall vllm; {SET_UP}",
        )
    first, last = VLLM_TRIED
    if not first <= _release(version)[:2] <= last:
        tried = f"0.{first[1]} to 0.{last[1]}"
        return Finding(State.NOTE, f"vLLM {version}; Stepshape was tried with {tried}", "install one of those")
    return Finding(State.FOUND, f"vLLM {version}, no CUDA in it")


def _numpy(facts: Facts) -> Finding:
    version = facts.versions.get("numpy")
    if version is None:
        return Finding(State.MISSING, "numpy is not installed", "pip install 'numpy<2'")
    if facts.versions.get("ttnn") is not None and _release(version) >= (2,):
        return Finding(State.MISSING, f"numpy {version}, and ttnn needs one below 2", "pip install 'numpy<2'")
    return Finding(State.FOUND, f"numpy {version}")


def _opencv(facts: Facts) -> Finding | None:
    version, numpy = facts.versions.get("opencv-python-headless"), facts.versions.get("numpy")
    if version is None or numpy is None:
        return None
    if _release(version) >= (4, 12) and _release(numpy) < (2,):
        return Finding(
            State.MISSING,
            f"opencv-python-headless {version} wants numpy 2, and {numpy} is here for ttnn",
            "pip install --no-deps opencv-python-headless==4.11.0.86",
        )
    return Finding(State.FOUND, f"opencv-python-headless {version} goes with numpy {numpy}")


def _entry_points(facts: Facts) -> list[Finding]:
    registered = {*facts.platform_plugins, *facts.general_plugins}
    absent = [name for name in ENTRY_POINTS if name not in registered]
    if absent:
        where = f"{absent[0]} ({ENTRY_POINTS[absent[0]]})"
        return [
            Finding(
                State.MISSING,
                f"vLLM does not find our entry point {where}",
                "pip install --no-deps --force-reinstall stepshape, in this environment",
            )
        ]
    return [Finding(State.FOUND, f"entry points {', '.join(ENTRY_POINTS)}")]


def _plugins(facts: Facts) -> list[Finding]:
    findings = []
    allowed = facts.allowed_plugins
    names = [name.strip() for name in (allowed or "").split(",") if name.strip()]
    if allowed is not None:
        hidden = [name for name in ENTRY_POINTS if name not in names]
        if hidden:
            findings.append(
                Finding(
                    State.MISSING,
                    f"VLLM_PLUGINS={allowed} hides {' and '.join(hidden)}",
                    f"unset VLLM_PLUGINS, or export VLLM_PLUGINS={','.join([*names, *hidden])}",
                )
            )
        else:
            findings.append(Finding(State.FOUND, f"VLLM_PLUGINS={allowed}"))
    others = [name for name in facts.platform_plugins if name != PLATFORM_ENTRY and (allowed is None or name in names)]
    if "tt" in others:
        findings.append(
            Finding(
                State.MISSING,
                "another Tenstorrent platform (tt) is installed, and vLLM runs one",
                f"export VLLM_PLUGINS={','.join(ENTRY_POINTS)}",
            )
        )
    if facts.emulated:
        findings.append(
            Finding(State.NOTE, "STEPSHAPE_TT_DEVICE selects the emulated mesh", "unset it to serve on the chips")
        )
    return findings


def _release(version: str) -> tuple[int, ...]:
    return tuple(int(piece) for piece in re.findall(r"\d+", version.partition("+")[0])[:3])


def _many(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"
