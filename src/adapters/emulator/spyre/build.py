"""Builds the C++ shim on first use and keeps it: one build a source text, torch release, Python and machine."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.machinery
import importlib.util
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import ModuleType

import torch

SHIM = Path(__file__).parent / "shim"
CACHE = "STEPSHAPE_CACHE_DIR"
"""Folder for what is built once; unset: ``$XDG_CACHE_HOME/stepshape`` or ``~/.cache/stepshape``."""


BUILD = """
import sys
from torch.utils.cpp_extension import load
name, source, folder = sys.argv[1:]
load(name=name, sources=[source], extra_cflags=["-O1", "-g0", "-fmax-errors=1"], build_directory=folder)
"""


class ShimError(RuntimeError):
    """The shim could not be built or loaded; the message says why and what to do."""


def cache_folder() -> Path:
    """Where builds are kept."""
    named = os.environ.get(CACHE)
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepshape"


def build_key(shim: Path = SHIM, release: str = torch.__version__) -> str:
    """What a build depends on, as 16 hexadecimal digits: the sources in the folder ``shim``, torch's release, the
    Python and the machine."""
    digest = hashlib.sha256()
    for path in sorted(path for path in shim.iterdir() if path.suffix in (".cpp", ".h")):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    for part in (release, sys.implementation.cache_tag, platform.machine()):
        digest.update(str(part).encode())
    return digest.hexdigest()[:16]


def built_shim(shim: Path = SHIM) -> ModuleType:
    """The sources in ``shim`` as a Python module, built if this is the first use. Raises :class:`ShimError`."""
    name = f"stepshape_spyre_{build_key(shim)}"
    folder = cache_folder() / "spyre"
    library = folder / f"{name}.so"
    if not library.exists():
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as refused:
            raise ShimError(
                f"the emulated Spyre device needs a folder to keep its build in and {folder} cannot be made "
                f"({refused}); set {CACHE} to one that can be written"
            ) from refused
        # A lock the kernel drops with the process: a build that was killed blocks nobody.
        with (folder / f"{name}.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not library.exists():
                _build(shim, name, library)
    return _imported(name, library)


def _build(shim: Path, name: str, library: Path) -> None:
    # Visible wherever it runs: an engine process that is silent for a minute looks hung.
    print("stepshape: building the emulated Spyre device (once; under a minute) ...", file=sys.stderr, flush=True)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(dir=library.parent) as work:
        # One translation unit: torch's headers, most of the compiler's work, are read once.
        whole = Path(work) / "whole.cpp"
        whole.write_text("".join(f'#include "{path}"\n' for path in sorted(shim.glob("*.cpp"))))
        # In a process of its own: cpp_extension also loads what it built, and the device can be loaded once only.
        done = subprocess.run(
            [sys.executable, "-c", BUILD, name, str(whole), work],
            # The ninja that pip put beside this Python is found without an activated environment.
            env={**os.environ, "PATH": os.pathsep.join((str(Path(sys.executable).parent), os.environ.get("PATH", "")))},
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            words = done.stdout + done.stderr
            log = library.with_suffix(".log")
            log.write_text(words)
            errors = [line for line in words.splitlines() if "rror:" in line] or words.splitlines()
            raise ShimError(
                f"the emulated Spyre device could not be built ({'; '.join(errors[-2:])}); it needs g++ (Debian: "
                f"build-essential), ninja and Python's headers, and {log} holds the compiler's words"
            )
        partial = library.with_suffix(f".{os.getpid()}")
        shutil.copyfile(Path(work) / library.name, partial)
        partial.replace(library)  # in one step: another process sees all of it or nothing
    print(f"stepshape: built in {time.monotonic() - started:.0f} s, kept as {library}", file=sys.stderr, flush=True)


def _imported(name: str, library: Path) -> ModuleType:
    loader = importlib.machinery.ExtensionFileLoader(name, str(library))
    spec = importlib.util.spec_from_file_location(name, library, loader=loader)
    if spec is None:
        raise ShimError(f"{library} is no Python extension; remove it and start again")
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module
