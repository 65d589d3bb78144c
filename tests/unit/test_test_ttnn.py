"""The script behind `make test-ttnn`: which Python it takes, and what it says where there is none."""

from __future__ import annotations

import importlib.util
import os
import stat
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("test_ttnn_script", ROOT / "scripts" / "test_ttnn.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def program(folder: Path, name: str, text: str) -> None:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(path.stat().st_mode | stat.S_IEXEC)


def found(script: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> str | None:
    monkeypatch.setenv("PATH", str(folder))
    python: str | None = script.find_python(os.environ, (version,))
    return python


def test_a_stub_of_a_version_manager_is_told_the_version(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    program(tmp_path, f"python{version}", f'[ "$PYENV_VERSION" = {version} ] && exec {sys.executable} "$@"; exit 127')
    assert found(script, tmp_path, monkeypatch, version) == sys.executable


def test_a_name_that_does_not_run_or_is_another_version_is_no_python(
    script: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert found(script, tmp_path, monkeypatch, "3.12") is None
    program(tmp_path, "python3.12", "exit 127")
    assert found(script, tmp_path, monkeypatch, "3.12") is None
    program(tmp_path, "python3.12", "echo 3.9 /usr/bin/python3.9")
    assert found(script, tmp_path, monkeypatch, "3.12") is None


@pytest.mark.parametrize(
    ("system", "machine", "python", "reason"),
    [
        ("Linux", "x86_64", "/usr/bin/python3.12", None),
        ("Linux", "x86_64", None, "wheels for Python 3.12 and 3.10, and neither was found"),
        ("Darwin", "arm64", "/usr/bin/python3.12", "wheels for x86-64 Linux, and this is arm64 Darwin"),
    ],
)
def test_the_reason_of_a_skip_is_said(
    script: ModuleType, system: str, machine: str, python: str | None, reason: str | None
) -> None:
    said = script.why_not(system, machine, python)
    assert said is None if reason is None else reason in said
