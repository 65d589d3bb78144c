"""Add vLLM and Stepshape to a tt-metal environment, and change nothing that the environment owns.

Run it with the environment's own Python: ``python scripts/set_up_tt_metal.py`` (``--dry-run``: resolve and stop).
Every package that is there is pinned as it is while the rest is resolved, so that pip ends with a conflict rather than
with another torch, numpy or ttnn. vLLM is built from its source for the empty target; a CUDA vLLM is refused.
Standard library and pip only.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

VLLM_BY_PYTHON: Mapping[tuple[int, int], str] = {(3, 10): "0.31.0", (3, 11): "0.33.0", (3, 12): "0.33.0"}
"""vLLM 0.32 and later need Python 3.11."""

BUILD_TOOLS = (
    "setuptools>=77,<81",
    "setuptools-scm>=8",
    "setuptools-rust>=1.9",
    "wheel",
    "jinja2",
    "packaging",
    "ninja",
    "cmake",
)
"""For vLLM's build alone: they go to a folder of their own, not into the environment."""

REPLACED: Mapping[str, str] = {
    # ttnn pins numpy below 2, and opencv from 4.12 on wants numpy 2: this is the last release that does not.
    "opencv-python-headless": "opencv-python-headless==4.11.0.86",
    "numpy": "numpy>=1.24.4,<2",
}
"""Requirements of vLLM that an environment with ttnn cannot have as they stand."""

LEFT_AS_THEY_ARE = frozenset({"torch", "setuptools"})
"""Not asked for where the environment has them: torch is its own, and vLLM's bound on setuptools is for triton's sake,
which runs nothing here."""


class RefusalError(Exception):
    """The environment cannot be set up as it is: one sentence of cause, one of mend."""


def normal(name: str) -> str:
    """A distribution's name as indexes compare it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def installed() -> dict[str, str]:
    """Every distribution of this environment: normal name to version."""
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = distribution.metadata["Name"]
        if name:
            found.setdefault(normal(name), distribution.version)
    return found


def vllm_for(python: tuple[int, int]) -> str:
    """The vLLM release for a Python. Raises RefusalError."""
    try:
        return VLLM_BY_PYTHON[python]
    except KeyError:
        there = ", ".join(f"{major}.{minor}" for major, minor in sorted(VLLM_BY_PYTHON))
        raise RefusalError(
            f"Python {python[0]}.{python[1]} has no vLLM that was tried with ttnn; use one of {there} (ttnn's wheels "
            "are for 3.10 and 3.12)"
        ) from None


def check_owned(present: Mapping[str, str]) -> None:
    """ttnn is there and numpy is one that it can use. Raises RefusalError."""
    if "ttnn" not in present:
        raise RefusalError("ttnn is not in this environment; run this script with the Python of a tt-metal environment")
    numpy = present.get("numpy")
    if numpy is not None and int(numpy.partition(".")[0]) >= 2:
        raise RefusalError(f"numpy {numpy} is here and ttnn needs one below 2; run: pip install 'numpy<2'")


def cuda_traces(version: str, files: Iterable[str], requires: Iterable[str]) -> list[str]:
    """What says that a vLLM was built for CUDA: compiled kernels, CUDA requirements, a local version."""
    traces = [f"version {version}"] if re.search(r"\+cu\d", version) else []
    traces += sorted(name for name in files if re.fullmatch(r"vllm/(.*/)?_\w*C\w*(\.abi3|\.cpython-[\w-]+)?\.so", name))
    traces += sorted(
        line.split(";")[0].strip()
        for line in requires
        if re.match(r"(nvidia-|flashinfer|cuda-)", normal(line)) and "extra ==" not in line
    )
    return traces


def check_vllm(present: Mapping[str, str], wanted: str) -> bool:
    """Whether vLLM has still to be installed. Raises RefusalError for a CUDA build and for another release."""
    if "vllm" not in present:
        return True
    distribution = importlib.metadata.distribution("vllm")
    files = [str(file) for file in distribution.files or ()]
    traces = cuda_traces(distribution.version, files, distribution.requires or ())
    if traces:
        raise RefusalError(
            f"the vLLM {distribution.version} of this environment was built for CUDA ({traces[0]}); run: pip uninstall "
            "vllm, and this script again"
        )
    if distribution.version.partition("+")[0] != wanted:
        raise RefusalError(
            f"vLLM {distribution.version} is in this environment and {wanted} goes with its Python; run: pip uninstall "
            "vllm, and this script again"
        )
    return False


def requirements(requires: Iterable[str], present: Mapping[str, str]) -> list[str]:
    """vLLM's own requirements as this environment can have them, without its extras and what it has already."""
    kept: list[str] = []
    for line in requires:
        if "extra ==" in line:
            continue
        name = normal(re.split(r"[\s\[<>=!~;(]", line, maxsplit=1)[0])
        if name in LEFT_AS_THEY_ARE and name in present:
            continue
        kept.append(REPLACED.get(name, line))
    if "torch" not in present:
        kept.append("torch")
    return kept


def constraints(present: Mapping[str, str], allowed: Sequence[str]) -> list[str]:
    """A pin for every package of the environment that was not named as allowed to move."""
    free = {normal(name) for name in allowed} | {"stepshape", "vllm", "pip"}
    # A local part (+cpu) names a build that an index may not have; as a constraint it still matches what is there.
    return [f"{name}=={version}" for name, version in sorted(present.items()) if name not in free]


def moved(before: Mapping[str, str], after: Mapping[str, str], allowed: Sequence[str]) -> list[str]:
    """Packages the environment owned that are not as they were."""
    free = {normal(name) for name in allowed} | {"stepshape"}
    return [
        f"{name} {version} -> {after.get(name, 'gone')}"
        for name, version in sorted(before.items())
        if name not in free and after.get(name) != version
    ]


def run(words: Sequence[str | Path], settings: Mapping[str, str] | None = None) -> None:
    """Run a command in the open. Raises RefusalError where it fails."""
    command = [str(word) for word in words]
    print(f"$ {' '.join(command[:8])}{' ...' if len(command) > 8 else ''}", flush=True)
    if subprocess.run(command, env={**os.environ, **(settings or {})}, check=False).returncode != 0:
        raise RefusalError(
            f"`{' '.join(command[1:5])} ...` failed; its message stands above. Where pip names a package of this "
            "environment as the conflict, --allow NAME lets that one move"
        )


def pip(*words: str | Path, settings: Mapping[str, str] | None = None) -> None:
    run([sys.executable, "-m", "pip", *words], settings)


def build_vllm(version: str, wheels: Path) -> Path:
    """Build vLLM's source for the empty target into ``wheels``, once. Returns the wheel."""
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    pattern = f"vllm-{version}-{tag}-*.whl"
    if not any(wheels.glob(pattern)):
        tools = wheels / f"build-tools-{tag}"
        pip("install", "--quiet", "--target", tools, "--upgrade", *BUILD_TOOLS)
        path = os.pathsep.join([str(tools), *filter(None, [os.environ.get("PYTHONPATH")])])
        settings = {
            "PYTHONPATH": path,
            "PATH": f"{tools / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "VLLM_TARGET_DEVICE": "empty",
            # Without it the wheel says X+empty where the sdist says X, and pip refuses it.
            "VLLM_VERSION_OVERRIDE": version,
            # The Rust front end is optional and unused here; offline, cargo gives up at once instead of fetching.
            "CARGO_NET_OFFLINE": "true",
        }
        options = ("--no-deps", "--no-build-isolation", "--no-binary", "vllm", "--wheel-dir", str(wheels))
        pip("wheel", *options, f"vllm=={version}", settings=settings)
    return next(wheels.glob(pattern))


def wheel_requires(wheel: Path) -> list[str]:
    """``Requires-Dist`` of a wheel."""
    from email import message_from_string
    from zipfile import ZipFile

    with ZipFile(wheel) as archive:
        name = next(entry for entry in archive.namelist() if entry.endswith(".dist-info/METADATA"))
        return message_from_string(archive.read(name).decode()).get_all("Requires-Dist") or []


def set_up(wheels: Path, allowed: Sequence[str], dry_run: bool) -> None:
    """Bring this environment to where `vllm serve` finds the mesh. Raises RefusalError."""
    before = installed()
    wanted = vllm_for((sys.version_info.major, sys.version_info.minor))
    check_owned(before)
    missing = check_vllm(before, wanted)
    print(f"ttnn {before['ttnn']}, torch {before.get('torch', 'not there')}, vLLM {wanted}", flush=True)
    wheels.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        pins = Path(scratch) / "constraints.txt"
        pins.write_text("\n".join(constraints(before, allowed)) + "\n", encoding="utf-8")
        if missing and "torch" not in before and not dry_run:
            # vLLM's build imports it.
            pip("install", "--constraint", pins, "torch")
        if missing:
            wheel = build_vllm(wanted, wheels)
            wants = Path(scratch) / "requirements.txt"
            wants.write_text("\n".join(requirements(wheel_requires(wheel), before)) + "\n", encoding="utf-8")
            pip("install", *(("--dry-run",) if dry_run else ()), "--constraint", pins, "--requirement", wants)
            if not dry_run:
                pip("install", "--no-deps", wheel)
        if not dry_run:
            pip("install", "--constraint", pins, "attrs>=23.2", "structlog>=23.2")
            pip("install", "--no-deps", ROOT)
    if dry_run:
        return
    importlib.invalidate_caches()
    changed = moved(before, installed(), allowed)
    if changed:
        raise RefusalError(f"packages of the environment are not as they were: {', '.join(changed)}; put them back")
    # A process of its own: this one has looked at the environment before.
    run([sys.executable, "-m", "stepshape.plugins.command_line.main", "doctor", "--environment-only"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Return 0, or 1 with a sentence."""
    parser = argparse.ArgumentParser(description="Add vLLM and Stepshape to a tt-metal environment.")
    parser.add_argument("--wheels", type=Path, default=ROOT / "build" / "wheels", help="where vLLM's wheel is kept")
    parser.add_argument("--allow", action="append", default=[], metavar="NAME", help="a package that may move")
    parser.add_argument("--dry-run", action="store_true", help="resolve, and install nothing")
    options = parser.parse_args(arguments)
    try:
        set_up(options.wheels, options.allow, options.dry_run)
    except RefusalError as refusal:
        print(f"set-up: {refusal}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nset-up was interrupted; run the same command again.", file=sys.stderr)
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
