from __future__ import annotations

from typing import Any

import attrs
import pytest

from stepshape.domain.chip_count import chips_without_looking
from stepshape.domain.diagnosis import DeviceFacts, Facts, State, diagnose, diagnose_device

VERSIONS: dict[str, str | None] = {
    "ttnn": "0.81.1",
    "torch": "2.13.0",
    "vllm": "0.33.0",
    "numpy": "1.26.4",
    "opencv-python-headless": "4.11.0.86",
}
GOOD = Facts(
    python=(3, 12),
    versions=VERSIONS,
    platform_plugins=["stepshape_tt", "ascend"],
    general_plugins=["stepshape_tt_models"],
)


def problems(**changes: Any) -> list[tuple[State, str, str]]:
    """What is not simply found. A version is changed by its package's name, with _ for -."""
    versions = {**VERSIONS, **{k.replace("_", "-"): v for k, v in changes.items() if k.replace("_", "-") in VERSIONS}}
    facts = {k: v for k, v in changes.items() if k.replace("_", "-") not in VERSIONS}
    found = diagnose(attrs.evolve(GOOD, versions=versions, **facts))
    return [(f.state, f.what, f.mend) for f in found if f.state is not State.FOUND]


def test_a_whole_environment_has_nothing_to_mend() -> None:
    assert problems() == []
    assert problems(allowed_plugins="stepshape_tt_models,stepshape_tt") == []


@pytest.mark.parametrize(
    ("changes", "what", "mend"),
    [
        ({"ttnn": None}, "ttnn is not installed", "activate the tt-metal environment"),
        ({"torch": None}, "torch is not installed", "set_up_tt_metal.py"),
        ({"vllm": None}, "vLLM is not installed", "set_up_tt_metal.py"),
        ({"cuda_trace": "vllm/_C.abi3.so"}, "was built for CUDA (vllm/_C.abi3.so)", "pip uninstall vllm"),
        ({"numpy": "2.1.0", "opencv_python_headless": None}, "numpy 2.1.0, and ttnn needs one below 2", "'numpy<2'"),
        ({"opencv_python_headless": "4.13.0.92"}, "4.13.0.92 wants numpy 2, and 1.26.4 is here", "==4.11.0.86"),
        ({"platform_plugins": []}, "does not find our entry point stepshape_tt (vllm.platform_plugins)", "reinstall"),
        ({"general_plugins": []}, "entry point stepshape_tt_models (vllm.general_plugins)", "reinstall"),
        ({"allowed_plugins": "lora"}, "VLLM_PLUGINS=lora hides stepshape_tt and stepshape_tt_models",
         "export VLLM_PLUGINS=lora,stepshape_tt,stepshape_tt_models"),
        ({"allowed_plugins": ""}, "VLLM_PLUGINS= hides stepshape_tt", "unset VLLM_PLUGINS"),
        ({"platform_plugins": ["stepshape_tt", "tt"]}, "another Tenstorrent platform (tt)",
         "export VLLM_PLUGINS=stepshape_tt,stepshape_tt_models"),
    ],
)  # fmt: skip
def test_what_is_missing_is_named_with_its_mend(changes: dict[str, Any], what: str, mend: str) -> None:
    ((state, said, mended),) = problems(**changes)
    assert state is State.MISSING
    assert what in said
    assert mend in mended


def test_another_platform_that_is_not_allowed_is_no_clash() -> None:
    assert problems(platform_plugins=["stepshape_tt", "tt"], allowed_plugins="stepshape_tt,stepshape_tt_models") == []


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"ttnn": "0.90.0"}, "ttnn 0.90.0; Stepshape was written against 0.81.1"),
        ({"vllm": "0.25.1"}, "vLLM 0.25.1; Stepshape was tried with 0.26 to 0.33"),
        ({"vllm": "0.34.0"}, "vLLM 0.34.0"),
        ({"emulated": True}, "STEPSHAPE_TT_DEVICE selects the emulated mesh"),
    ],
)
def test_what_may_work_is_a_note(changes: dict[str, Any], what: str) -> None:
    ((state, said, mend),) = problems(**changes)
    assert state is State.NOTE
    assert what in said
    assert mend


def test_the_device_is_said_in_one_line_or_why_there_is_none() -> None:
    found = diagnose_device(
        DeviceFacts(nodes=4, chips=8, cluster="T3K", arch="wormhole_b0", firmware=["19.3.0", "19.3.0"])
    )
    assert [f.what for f in found] == ["8 chips, cluster T3K, wormhole_b0 (4 device nodes)", "firmware 19.3.0"]
    (missing,) = diagnose_device(DeviceFacts(nodes=0, reason="there is none"))
    assert (missing.state, missing.what) == (State.MISSING, "no Tenstorrent device: there is none")
    simulated = diagnose_device(DeviceFacts(nodes=0, simulator="/opt/sim", chips=1, cluster="N150", arch="wormhole_b0"))
    assert "1 chip, cluster N150, wormhole_b0 (simulator /opt/sim)" in simulated[0].what
    assert simulated[1].state is State.NOTE


@pytest.mark.parametrize(
    ("nodes", "mesh", "visible", "chips"),
    [
        (4, "T3K", None, None),  # four nodes, eight chips
        (1, "N300", "", None),
        (1, "N150", None, 1),
        (32, "TG", None, 32),
        (32, None, None, None),
        (0, "N150", None, None),  # a simulator has no nodes
        (4, "T3K", "0,1,2,3", 4),
        (4, None, "4,5,6,7", 8),
        (2, "nonsense", None, None),
    ],
)
def test_chips_are_looked_for_where_the_nodes_do_not_tell(
    nodes: int, mesh: str | None, visible: str | None, chips: int | None
) -> None:
    assert chips_without_looking(nodes, mesh, visible) == chips
