"""Run the mesh's engine tests on other releases of vLLM than the locked one: `make test-releases [RELEASES="0.31.0"]`.

Each release is built from its sdist for the empty target and unpacked before the environment's own on the path, with
the xgrammar it pins; everything else is as locked. Not part of `make test`: the builds and runs take a quarter of an
hour. Run with the Python of `.venv`.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zipfile
from pathlib import Path

from set_up import LOG, PYTHON, ROOT, StageError, run, vllm_wheel

WHERE = ROOT / "build" / "releases"
RELEASES = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
TESTS = ("tests/integration/test_steps.py", "tests/integration/test_frames.py", "tests/integration/test_it_is_right.py")


def say(at: str) -> None:
    """A release is told in a line of its own; what pip is at stands in the log."""


def unpacked(release: str) -> Path:
    """The folder that holds the release, made once."""
    folder = WHERE / release
    packages = folder / "packages"
    if not (folder / "made").exists():
        print(f"[{release}] building for no device", flush=True)
        with zipfile.ZipFile(vllm_wheel(release, folder, say)) as archive:
            archive.extractall(packages)
            metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            pins = re.findall(r"^Requires-Dist: (xgrammar==[0-9.]+)", archive.read(metadata).decode(), re.MULTILINE)
        if pins:
            run([PYTHON, "-m", "pip", "install", "--no-deps", "--upgrade", "--target", packages, pins[0]], say)
        (folder / "made").touch()
    return packages


def main() -> None:
    """Test the releases named on the command line, or all; the exit status says whether every one passed."""
    failed = []
    for release in sys.argv[1:] or RELEASES:
        try:
            path = os.pathsep.join((str(unpacked(release)), str(ROOT / "typings")))
        except StageError as failure:
            sys.exit(f"[{release}] {failure}; {LOG} holds what it printed")
        print(f"[{release}] running {' '.join(TESTS)}", flush=True)
        command = [str(PYTHON), "-m", "pytest", "-q", "--durations=0", "--durations-min=60", *TESTS]
        if subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False).returncode != 0:
            failed.append(release)
    print(f"failed: {', '.join(failed)}" if failed else "every release passed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
