"""The emulated card in processes of its own: selection, build and cache, a quiet end."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from stepshape.adapters.emulator.spyre.build import ShimError, build_key, built_shim

ROOT = Path(__file__).resolve().parents[2]


def run(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    paths = [str(ROOT / "typings"), environment.pop("PYTHONPATH", "")]
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join(filter(None, paths))},
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_process_ends_quietly_with_tensors_streams_events_and_graphs_alive() -> None:
    done = run(
        """
import torch
from stepshape.adapters.emulator import spyre
spyre.load()
spyre.load()
ones = torch.ones(4, 64, dtype=torch.float16, device="spyre")
kept = [ones, torch.Stream(device="spyre"), torch.Event(device="spyre")]
kept[2].record()
generator = torch.Generator(device="spyre").manual_seed(1)
double = torch.compile(lambda x: x * 2, backend=spyre.checking_backend(), dynamic=False)
class Late:
    def __init__(self, tensor):
        self.tensor = tensor
    def __del__(self):
        self.tensor.add_(1)  # an operator that was never seen, while the interpreter goes down
late = Late(kept[0])
print(double(kept[0]).sum().item(), torch.get_num_threads())
torch.accelerator.synchronize()
torch.accelerator.empty_host_cache()
""",
        OMP_NUM_THREADS="2",
    )
    assert (done.returncode, done.stdout.split()) == (0, ["512.0", "2"]), done.stderr
    assert "Error" not in done.stderr and "egmentation" not in done.stderr


def test_switches_come_from_the_environment() -> None:
    code = """
import torch
from stepshape.adapters.emulator import spyre
spyre.load()
third = torch.ones(64, dtype=torch.float16, device="spyre:1") / 3
print(spyre.rounding(), torch.accelerator.device_count(), third.device, float(third[0]) == 1 / 3)
print(torch.empty(2, dtype=torch.int32, device="spyre").tolist(), torch.get_num_threads())
"""
    done = run(
        code, OMP_NUM_THREADS="", STEPSHAPE_SPYRE_ROUNDING="off", STEPSHAPE_SPYRE_CARDS="2", STEPSHAPE_SPYRE_FILL="0x01"
    )
    assert done.stdout.splitlines() == ["False 2 spyre:1 False", "[16843009, 16843009] 1"], done.stderr


def test_beside_the_real_device_the_shim_is_not_loaded(tmp_path: Path) -> None:
    (tmp_path / "torch_spyre.py").write_text("import torch\ntorch.utils.rename_privateuse1_backend('spyre')\n")
    done = run(
        """
import sys, torch
from stepshape.adapters.emulator import spyre
print(torch._C._get_privateuse1_backend_name())  # importing loads nothing
import torch_spyre
try:
    spyre.load()
except spyre.ShimError as refused:
    print(refused)
print([name for name in sys.modules if name.startswith("stepshape_spyre")], spyre.is_loaded())
""",
        PYTHONPATH=str(tmp_path),
    )
    before, refused, after = done.stdout.splitlines()
    assert before == "privateuseone", done.stderr
    assert refused.startswith("torch_spyre is already this process's device")
    assert after == "[] False"


def test_a_build_is_kept_by_source_and_torch_release(tmp_path: Path) -> None:
    (tmp_path / "memory.cpp").write_text("// one")
    key = build_key(tmp_path)
    assert build_key(tmp_path) == key
    assert build_key(tmp_path, release="0.0.0") != key
    (tmp_path / "memory.cpp").write_text("// other")
    assert build_key(tmp_path) != key


def test_a_build_that_fails_says_what_it_needs(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A shim of one wrong line, in a cache of its own: the sentence, and the compiler's words in a file."""
    (tmp_path / "shim").mkdir()
    (tmp_path / "shim" / "wrong.cpp").write_text("#error no device here\n")
    monkeypatch.setenv("STEPSHAPE_CACHE_DIR", str(tmp_path / "cache"))
    with pytest.raises(ShimError, match=r"no device here.*it needs g\+\+"):
        built_shim(tmp_path / "shim")
    assert "no device here" in next((tmp_path / "cache" / "spyre").glob("*.log")).read_text()


def test_a_cache_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("STEPSHAPE_CACHE_DIR", str(tmp_path / "file"))
    with pytest.raises(ShimError, match="set STEPSHAPE_CACHE_DIR to one that can be written"):
        built_shim()
