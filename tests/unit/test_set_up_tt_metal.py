"""The set-up for a tt-metal environment: what it pins, replaces and refuses, on environments that only say so."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "set_up_tt_metal.py"


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("set_up_tt_metal", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_each_python_has_its_vllm(script: ModuleType) -> None:
    assert script.vllm_for((3, 10)) == "0.31.0"
    assert script.vllm_for((3, 12)) == "0.33.0"
    with pytest.raises(script.RefusalError, match=r"Python 3.13 has no vLLM.*use one of 3.10, 3.11, 3.12"):
        script.vllm_for((3, 13))


@pytest.mark.parametrize(
    ("present", "words"),
    [
        ({"numpy": "1.26.4"}, "ttnn is not in this environment; run this script with the Python of a tt-metal"),
        ({"ttnn": "0.81.1", "numpy": "2.0.0"}, "numpy 2.0.0 is here and ttnn needs one below 2; run: pip install"),
    ],
)
def test_an_environment_that_is_none_is_refused(script: ModuleType, present: dict[str, str], words: str) -> None:
    with pytest.raises(script.RefusalError, match=words):
        script.check_owned(present)


def test_what_the_environment_has_is_pinned_and_what_is_ours_is_not(script: ModuleType) -> None:
    present = {"torch": "2.7.1+cpu", "numpy": "1.26.4", "transformers": "4.53.0", "stepshape": "0.1.0", "pip": "26.3"}
    assert script.constraints(present, []) == ["numpy==1.26.4", "torch==2.7.1+cpu", "transformers==4.53.0"]
    assert script.constraints(present, ["Transformers"]) == ["numpy==1.26.4", "torch==2.7.1+cpu"]


def test_requirements_that_cannot_be_had_beside_ttnn_are_replaced(script: ModuleType) -> None:
    wanted = [
        "regex",
        "numpy",
        "opencv-python-headless>=4.13.0",
        "torch==2.13.0",
        'setuptools<81.0.0,>=78.1.1; python_version > "3.11"',
        "mistral_common[image]>=1.11.6",
        'datasets; extra == "bench"',
    ]
    assert script.requirements(wanted, {"torch": "2.7.1", "setuptools": "84.2.1"}) == [
        "regex",
        "numpy>=1.24.4,<2",
        "opencv-python-headless==4.11.0.86",
        "mistral_common[image]>=1.11.6",
    ]
    bare = script.requirements(wanted, {})
    assert bare[3:5] == ["torch==2.13.0", 'setuptools<81.0.0,>=78.1.1; python_version > "3.11"']
    assert bare[-1] == "torch"


@pytest.mark.parametrize(
    ("version", "files", "requires", "trace"),
    [
        ("0.33.0", ["vllm/__init__.py"], ["torch", "numpy"], []),
        ("0.33.0", ["vllm/_C.abi3.so", "vllm/version.py"], [], ["vllm/_C.abi3.so"]),
        ("0.33.0", ["vllm/_moe_C.abi3.so"], [], ["vllm/_moe_C.abi3.so"]),
        ("0.33.0", ["vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"], [], ["vllm/vllm_flash_attn/_vllm_fa2_C.abi3.so"]),
        ("0.33.0+cu129", [], [], ["version 0.33.0+cu129"]),
        ("0.33.0", [], ["flashinfer-python==0.6; python_version >= '3'"], ["flashinfer-python==0.6"]),
        ("0.33.0", [], ['nvidia-deepstream-videodecode-cu13>=9; extra == "deepstream"'], []),
    ],
)
def test_a_cuda_vllm_leaves_traces(
    script: ModuleType, version: str, files: list[str], requires: list[str], trace: list[str]
) -> None:
    assert script.cuda_traces(version, files, requires) == trace


def test_what_moved_is_found_afterwards(script: ModuleType) -> None:
    before = {"torch": "2.7.1", "numpy": "1.26.4", "tqdm": "4.0", "stepshape": "0.0.9"}
    after = {"torch": "2.13.0", "numpy": "1.26.4", "stepshape": "0.1.0"}
    assert script.moved(before, after, []) == ["torch 2.7.1 -> 2.13.0", "tqdm 4.0 -> gone"]
    assert script.moved(before, after, ["torch", "tqdm"]) == []


def environment(folder: Path, **packages: str) -> Path:
    """The Python of an environment that says it has these packages, each with the files named after its version."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = (folder / "lib").glob("python*/site-packages")
    for name, said in packages.items():
        version, *files = said.split()
        information = site / f"{name}-{version}.dist-info"
        information.mkdir()
        (information / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (information / "RECORD").write_text("".join(f"{file},,\n" for file in files))
    return folder / "bin" / "python"


@pytest.mark.parametrize(
    ("packages", "words"),
    [
        ({}, "set-up: ttnn is not in this environment"),
        ({"ttnn": "0.81.1", "numpy": "2.3.5"}, "set-up: numpy 2.3.5 is here"),
        (
            {"ttnn": "0.81.1", "numpy": "1.26.4", "vllm": "0.33.0 vllm/_C.abi3.so"},
            "set-up: the vLLM 0.33.0 of this environment was built for CUDA (vllm/_C.abi3.so); run: pip uninstall vllm",
        ),
        (
            {"ttnn": "0.81.1", "numpy": "1.26.4", "vllm": "0.30.0"},
            "set-up: vLLM 0.30.0 is in this environment and 0.33.0 goes with its Python",
        ),
    ],
)
def test_a_refusal_is_one_line_and_installs_nothing(tmp_path: Path, packages: dict[str, str], words: str) -> None:
    python = environment(tmp_path / "venv", **packages)
    result = subprocess.run([python, SCRIPT, "--wheels", tmp_path / "w"], capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stdout == ""
    (line,) = result.stderr.splitlines()
    assert line.startswith(words)
    assert not (tmp_path / "w").exists()
