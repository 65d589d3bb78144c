"""The layout holds: arrows point down, the package list is whole, no drawer for odds and ends."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import tomllib

ROOT = Path(__file__).resolve().parents[2]
SOURCES = ROOT / "src"


def lint_imports(root: Path) -> subprocess.CompletedProcess[str]:
    """Run the contracts of ``root/pyproject.toml`` over ``root/src`` under the import name."""
    link = root / "typings" / "stepshape"
    if not link.exists():
        link.parent.mkdir(exist_ok=True)
        link.symlink_to(root / "src")
    return subprocess.run(
        [
            sys.executable,
            "-c",
            "from importlinter.cli import lint_imports_command; lint_imports_command()",
            "--no-cache",
        ],
        cwd=root,
        env={**os.environ, "PYTHONPATH": str(link.parent), "PYTHONSAFEPATH": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def house(tmp_path: Path) -> Path:
    """A copy of the sources that a test may break."""
    shutil.copytree(SOURCES, tmp_path / "src", ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    return tmp_path


def test_every_import_contract_is_kept() -> None:
    result = lint_imports(ROOT)
    assert result.returncode == 0, result.stdout + result.stderr
    assert ", 0 broken." in result.stdout


@pytest.mark.parametrize(
    ("room", "line", "contract"),
    [
        ("ports", "from .. import domain", "Arrows point down only"),
        ("domain", "from ..adapters import telemetry", "Arrows point down only"),
        ("adapters/emulator", "from .. import vllm", "Adapters meet through ports"),
        ("domain", "import numpy", "The core knows no array"),
        ("ports", "import time", "The core knows no array"),
        ("adapters/emulator", "import vllm", "Only the vLLM adapter"),
    ],
)
def test_a_wrong_import_breaks_its_contract(house: Path, room: str, line: str, contract: str) -> None:
    (house / "src" / room / "planted.py").write_text(line + "\n")
    result = lint_imports(house)
    assert result.returncode == 1, result.stdout + result.stderr
    broken = [row for row in result.stdout.splitlines() if row.rstrip().endswith(" BROKEN")]
    assert [row for row in broken if row.startswith(contract)], result.stdout


def test_the_package_list_names_every_folder_with_python_in_it() -> None:
    listed = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["packages"]
    folders = {path.parent.relative_to(SOURCES) for path in SOURCES.rglob("*.py")}
    assert sorted(listed) == sorted(".".join(("stepshape", *folder.parts)) for folder in folders)
    assert all((SOURCES / folder / "__init__.py").exists() for folder in folders)


def test_no_file_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "util", "helpers", "common", "misc"}
    assert [path for path in SOURCES.rglob("*.py") if path.stem in drawers] == []
