"""The set-up script: what makes it work again, and what it says when a stage fails."""

from __future__ import annotations

import importlib.util
import re
import shutil
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def set_up(tmp_path: Path) -> ModuleType:
    """The script of a copied tree, so that nothing here touches the environment the tests run in."""
    for name in ("requirements.lock", "pyproject.toml", "scripts/set_up.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    spec = importlib.util.spec_from_file_location("set_up_of_a_copy", tmp_path / "scripts" / "set_up.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_an_environment_whose_stamp_stands_is_left_alone(
    set_up: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    venv = set_up.ROOT / ".venv"
    venv.mkdir()
    (venv / "set-up.stamp").write_text(set_up.fingerprint())
    set_up.main()
    assert capsys.readouterr().out == ""
    assert [path.name for path in venv.iterdir()] == ["set-up.stamp"]


@pytest.mark.parametrize("name", ["requirements.lock", "pyproject.toml", "scripts/set_up.py"])
def test_a_change_of_what_it_was_made_from_changes_the_fingerprint(set_up: ModuleType, name: str) -> None:
    before = set_up.fingerprint()
    with (set_up.ROOT / name).open("a") as file:
        file.write("# changed\n")
    assert set_up.fingerprint() != before


def test_a_stage_that_fails_shows_the_end_of_its_log_and_what_to_do(
    set_up: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [sys.executable, "-c", "print('No matching distribution found for torch'); raise SystemExit(7)"]
    with pytest.raises(SystemExit) as exit_:
        set_up.Stages(total=1).stage("installing", lambda say: set_up.run(command, say))
    out = capsys.readouterr().out
    assert out.startswith("[set-up 1/1] installing\n")
    assert "installing failed" in out
    assert "ended with 7" in out
    assert "No matching distribution found for torch" in out
    assert "run the same command again" in str(exit_.value)


def test_a_stage_tells_what_pip_is_at(set_up: ModuleType) -> None:
    said: list[str] = []
    code = "import time; print('Collecting torch==2.13.0', flush=True); time.sleep(1.5)"
    set_up.run([sys.executable, "-c", code], said.append)
    assert said[-1] == "Collecting torch==2.13.0"


def test_a_folder_that_moved_or_is_empty_is_no_environment(set_up: ModuleType) -> None:
    assert not set_up.stands()
    set_up.VENV.mkdir()
    (set_up.VENV / "pyvenv.cfg").write_text("command = python -m venv /elsewhere/.venv\n")
    assert not set_up.stands()


def test_every_line_of_the_lock_is_one_pinned_package_without_a_host() -> None:
    lines = [line for line in (ROOT / "requirements.lock").read_text().splitlines() if not line.startswith("#")]
    pin = re.compile(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+(; sys_platform == \"linux\")?")
    assert [line for line in lines if not pin.fullmatch(line)] == []
    names = [re.split("==", line)[0].lower().replace("_", "-") for line in lines]
    assert len(names) == len(set(names))
    assert not {name for name in names if name.startswith("nvidia-") or name in ("vllm", "stepshape")}
