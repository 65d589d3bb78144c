"""The tests of whole Spyre engines, each file in a process of its own: vLLM has one platform a process, and the other
tests of this session are on the mesh."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "tests" / "spyre"
WITHOUT_ROUNDING = ("test_exact.py", "test_smollm2_exact.py", "test_two_cards_exact.py")
"""Files whose card keeps fp32 throughout, so that text can be compared with that of ``transformers``."""


def plugin_metadata(folder: Path) -> Path:
    """A folder for PYTHONPATH with this checkout's entry points, however old the installed metadata is."""
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]
    info = folder / "stepshape_checkout-0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: stepshape-checkout\nVersion: 0\n")
    lines = [f"[{group}]\n" + "\n".join(f"{k} = {v}" for k, v in entries.items()) for group, entries in groups.items()]
    (info / "entry_points.txt").write_text("\n".join(lines) + "\n")
    return folder


def spyre_environment(folder: Path, *, rounding: bool = True) -> dict[str, str]:
    return {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(ROOT / "typings"), str(plugin_metadata(folder)))),
        "STEPSHAPE_SPYRE_DEVICE": "emulated",
        "STEPSHAPE_TT_DEVICE": "",
        "STEPSHAPE_SPYRE_ROUNDING": "on" if rounding else "off",
        "OMP_NUM_THREADS": "1",
        "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
        "HF_HUB_OFFLINE": "1",
    }


@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", sorted(path.name for path in FOLDER.glob("test_*.py")))
def test_engines(name: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "--timeout", "600", str(FOLDER / name)],
        env=spyre_environment(tmp_path, rounding=name not in WITHOUT_ROUNDING),
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-2000:]
