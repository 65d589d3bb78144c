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

ROOT = Path(__file__).resolve().parent.parent
WHERE = ROOT / "build" / "releases"
RELEASES = ("0.26.0", "0.27.1", "0.28.0", "0.29.0", "0.30.0", "0.31.0", "0.32.0")
TESTS = ("tests/integration/test_steps.py", "tests/integration/test_frames.py", "tests/integration/test_it_is_right.py")


def pip(*words: str | Path, **settings: str) -> None:
    """Run pip quietly. Exits the program with what it printed where it fails."""
    command = [sys.executable, "-m", "pip", *map(str, words)]
    done = subprocess.run(command, env={**os.environ, **settings}, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"`pip {' '.join(map(str, words[:4]))} ...` failed:\n{done.stdout[-2000:]}{done.stderr[-2000:]}")


def unpacked(release: str) -> Path:
    """The folder that holds the release, made once."""
    folder = WHERE / release
    packages = folder / "packages"
    if not (folder / "made").exists():
        print(f"[{release}] building for no device", flush=True)
        pip(
            *("wheel", "--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--wheel-dir", folder),
            f"vllm=={release}",
            VLLM_TARGET_DEVICE="empty",
            VLLM_VERSION_OVERRIDE=release,
            CARGO_NET_OFFLINE="true",
        )
        wheel = next(folder.glob("vllm-*.whl"))
        with zipfile.ZipFile(wheel) as archive:
            archive.extractall(packages)
            metadata = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
            pins = re.findall(r"^Requires-Dist: (xgrammar==[0-9.]+)", archive.read(metadata).decode(), re.MULTILINE)
        if pins:
            pip("install", "--no-deps", "--upgrade", "--target", packages, pins[0])
        (folder / "made").touch()
    return packages


def main() -> None:
    """Test the releases named on the command line, or all; the exit status says whether every one passed."""
    failed = []
    for release in sys.argv[1:] or RELEASES:
        path = os.pathsep.join((str(unpacked(release)), str(ROOT / "typings")))
        print(f"[{release}] running {' '.join(TESTS)}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "--durations=0", "--durations-min=60", *TESTS]
        if subprocess.run(command, cwd=ROOT, env={**os.environ, "PYTHONPATH": path}, check=False).returncode != 0:
            failed.append(release)
    print(f"failed: {', '.join(failed)}" if failed else "every release passed")
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
