"""The core installs and imports where there is neither torch nor vLLM.

A wheel is built and installed in an empty virtual environment. Its two requirements, attrs and structlog, are copied
in from here, so that the test needs no registry.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import sysconfig
from importlib.metadata import distribution
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

IMPORT_ALL = """
import importlib, importlib.util, pkgutil, sys
for absent in ("torch", "vllm", "numpy", "transformers"):
    assert importlib.util.find_spec(absent) is None, absent
import stepshape.domain, stepshape.ports
names = ["stepshape.domain", "stepshape.ports"]
for package in (stepshape.domain, stepshape.ports):
    for module in pkgutil.walk_packages(package.__path__, package.__name__ + "."):
        importlib.import_module(module.name)
        names.append(module.name)
outside = {name.partition(".")[0] for name in sys.modules} - sys.stdlib_module_names - {"__main__", "stepshape"}
print("outside:", *sorted(name for name in outside if not name.startswith("_")))
print("imported:", *sorted(names))
"""


def run(*command: str | Path, cwd: Path) -> str:
    """Run a command in ``cwd``; return what it printed, or fail with it."""
    result = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        capture_output=True,
        text=True,
        check=False,
        env={"PATH": "/usr/bin:/bin"},
    )
    assert result.returncode == 0, result.stdout + result.stderr
    return result.stdout


@pytest.fixture(scope="module")
def bare_python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Python of a virtual environment that holds Stepshape, attrs and structlog, and nothing else."""
    folder = tmp_path_factory.mktemp("bare")
    tree = folder / "tree"
    # A copy: setuptools leaves its build folder in the tree it builds.
    shutil.copytree(ROOT / "src", tree / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tree)
    run(sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", folder, tree, cwd=folder)
    run(sys.executable, "-m", "venv", "--without-pip", folder / "venv", cwd=folder)
    python = folder / "venv" / "bin" / "python"
    packages = Path(run(python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", cwd=folder).strip())
    run(
        *(sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--no-index", "--target", packages),
        *folder.glob("stepshape-*.whl"),
        cwd=folder,
    )
    here = Path(sysconfig.get_path("purelib"))
    for name in ("attrs", "structlog"):
        for top in {Path(file).parts[0] for file in distribution(name).files or () if ".." not in Path(file).parts}:
            shutil.copytree(here / top, packages / top)
    return python


def test_the_core_imports_with_attrs_and_structlog_alone(bare_python: Path, tmp_path: Path) -> None:
    lines = dict(line.split(": ", 1) for line in run(bare_python, "-c", IMPORT_ALL, cwd=tmp_path).splitlines())
    assert lines["outside"].split() == ["attr", "attrs"]
    files = [
        path.relative_to(ROOT / "src") for ring in ("domain", "ports") for path in (ROOT / "src" / ring).rglob("*.py")
    ]
    modules = {".".join(("stepshape", *path.with_suffix("").parts)).removesuffix(".__init__") for path in files}
    assert set(lines["imported"].split()) == modules


def test_the_command_answers_without_the_extras(bare_python: Path, tmp_path: Path) -> None:
    command = "from stepshape.plugins.command_line.main import main; main(['--version'])"
    assert run(bare_python, "-c", command, cwd=tmp_path).startswith("0.")
