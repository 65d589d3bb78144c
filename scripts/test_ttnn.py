"""Hold our use of ttnn against the real wheel: make `.venv-ttnn`, run ``tests/ttnn`` in it. Run by `make test-ttnn`.

ttnn's wheels are for Python 3.10 and 3.12 on x86-64 Linux. Where none of them can be had, this says so and ends with 0:
nothing was tested, and nothing failed. Standard library only.
"""

from __future__ import annotations

import hashlib
import os
import platform
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv-ttnn"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / "stamp"
LOG = ROOT / "test-ttnn.log"

TTNN = "ttnn==0.81.1"
PACKAGES = (TTNN, "numpy<2", "attrs>=23.2", "structlog>=23.2", "pytest>=8.3")
"""Without torch: ttnn imports it where it is, and ours has to import without."""
FOR_SIMULATOR = ("torch>=2.7",)
"""Tensors on the host; wanted only where there is something to run on."""

SIMULATOR = "TT_METAL_SIMULATOR"
VERSIONS = ("3.12", "3.10")


def find_python(environment: Mapping[str, str], versions: Sequence[str] = VERSIONS) -> str | None:
    """The path of a Python of one of ``versions``, the first that runs; None: there is none.

    Found by name. A name on the path need not run: a version manager's stub wants to be told the version.
    """
    ask = "import sys, venv, ensurepip; print('%d.%d' % sys.version_info[:2], sys.executable)"
    for version in versions:
        for settings in ({}, {"PYENV_VERSION": version}):
            try:
                answer = subprocess.run(
                    [f"python{version}", "-c", ask],
                    env={**environment, **settings},
                    capture_output=True,
                    text=True,
                    check=False,
                ).stdout.split(maxsplit=1)
            except OSError:
                continue
            if len(answer) == 2 and answer[0] == version:
                return answer[1].strip()
    return None


def why_not(system: str, machine: str, python: str | None) -> str | None:
    """Why the wheel cannot be had here; None: it can."""
    if (system, machine) != ("Linux", "x86_64"):
        return f"ttnn has wheels for x86-64 Linux, and this is {machine} {system}"
    if python is None:
        return f"ttnn has wheels for Python {' and '.join(VERSIONS)}, and neither was found; install one to run them"
    return None


def install(python: str, packages: Sequence[str]) -> None:
    """Make the environment, unless it was made from the same before. Exits the program with the log where pip fails."""
    wanted = hashlib.sha256("\n".join((str(ROOT), python, *packages)).encode()).hexdigest()
    if STAMP.exists() and STAMP.read_text(encoding="utf-8") == wanted:
        return
    print(f"[test-ttnn] making .venv-ttnn with {TTNN} (a minute or two, once)", flush=True)
    with LOG.open("w", encoding="utf-8") as log:
        commands = (
            [python, "-m", "venv", "--clear", str(VENV)],
            [str(PYTHON), "-m", "pip", "install", *packages],
        )
        for command in commands:
            if subprocess.run(command, stdout=log, stderr=subprocess.STDOUT, check=False).returncode != 0:
                log.flush()
                print("\n".join(LOG.read_text(encoding="utf-8").splitlines()[-15:]))
                sys.exit(f"[test-ttnn] `{' '.join(command[1:4])} ...` failed; the whole log is {LOG}")
    STAMP.write_text(wanted, encoding="utf-8")


def main() -> int:
    """Return pytest's status, or 0 where nothing can be run."""
    python = find_python(os.environ)
    reason = why_not(platform.system(), platform.machine(), python)
    if reason is not None:
        print(f"[test-ttnn] skipped: {reason}")
        return 0
    assert python is not None
    simulated = bool(os.environ.get(SIMULATOR, "").strip())
    install(python, (*PACKAGES, *(FOR_SIMULATOR if simulated else ())))
    settings = {"PYTHONPATH": str(ROOT / "typings"), "TT_LOGGER_LEVEL": "ERROR", "LOGURU_LEVEL": "ERROR"}
    options = ("--override-ini=addopts=", "-p", "no:cacheprovider", "-q", "-rs", "--confcutdir=tests/ttnn")
    command = [str(PYTHON), "-m", "pytest", *options, "tests/ttnn"]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **settings}, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
