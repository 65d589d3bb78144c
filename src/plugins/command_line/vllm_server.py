"""A plain ``vllm serve`` as a child process: its command line, its log, its health, its end."""

from __future__ import annotations

import os
import shlex
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

GALAXY_ENVIRONMENT: Mapping[str, str] = {
    "STEPSHAPE_TT_DEVICE": "emulated",
    "MESH_DEVICE": "TG",
    "TT_LLAMA_TEXT_VER": "llama3_70b_galaxy",
    "VLLM_RPC_TIMEOUT": "900000",
}
"""What selects an emulated Galaxy and the model class that runs its lanes in one step."""

GALAXY_FLAGS: Sequence[str] = (
    *("--max-model-len", "1024"),
    *("--data_parallel_size", "4"),
    *("--max_num_seqs", "8"),
    "--async-scheduling",
    *("--additional-config.tt.dispatch_core_axis", "col"),
    *("--additional-config.tt.sample_on_device_mode", "all"),
    *("--additional-config.tt.fabric_config", "FABRIC_1D_RING"),
    *("--additional-config.tt.worker_l1_size", "1344544"),
    *("--additional-config.tt.trace_region_size", "220000000"),
)
"""As Tenstorrent publishes them for Llama 3.3 70B on a Galaxy."""

KILL_AFTER_S = 60.0
"""How long an interrupted server may take; vLLM's own deadline for its engine is well below."""


class ServerError(Exception):
    """The server did not start, or did not end."""


def command_line(model: Path | str, *, port: int, name: str, flags: Sequence[str] = GALAXY_FLAGS) -> list[str]:
    """``vllm serve`` of this Python environment, on this machine's own address only."""
    vllm = Path(sys.executable).with_name("vllm")
    where = ["--served-model-name", name, "--host", "127.0.0.1", "--port", str(port)]
    return [str(vllm) if vllm.exists() else "vllm", "serve", str(model), *where, *flags]


def as_typed(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """The command as a person would type it, an option a line."""
    words = [f"{name}={shlex.quote(value)}" for name, value in environment.items()]
    lines = [" ".join(words), " ".join(["vllm", *map(shlex.quote, command[1:3])])]
    for word in command[3:]:
        if word.startswith("--"):
            lines.append(f"    {word}")
        else:
            lines[-1] += f" {shlex.quote(word)}"
    return " \\\n".join(lines)


def free_port() -> int:
    """A TCP port nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


class VllmServer:
    """Starts at once. The child has a session of its own: a terminal's Ctrl-C does not reach it, :meth:`stop` does.

    ``environment`` is added to this process's. Standard output and error go to ``log``.
    """

    def __init__(self, command: Sequence[str], *, port: int, log: Path, environment: Mapping[str, str]) -> None:
        self.log = log
        self.address = f"http://127.0.0.1:{port}"
        log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("wb") as sink:
            self.process = subprocess.Popen(
                list(command),
                env={**os.environ, **environment},
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def text(self) -> str:
        """The log so far."""
        return self.log.read_text(encoding="utf-8", errors="replace")

    def wait_until_healthy(self, timeout_s: float, tick: Callable[[float], None] = lambda seconds: None) -> None:
        """Return when ``/health`` answers. ``tick`` gets the seconds since the call, twice a second.

        Raises :class:`ServerError` if the server ends first, or has not answered after ``timeout_s`` seconds.
        """
        started = time.monotonic()
        while not self._healthy():
            passed = time.monotonic() - started
            if self.process.poll() is not None:
                raise ServerError(
                    f"the server ended with exit code {self.process.returncode} before it was healthy; read {self.log}"
                )
            if passed > timeout_s:
                raise ServerError(f"the server was not healthy after {timeout_s:.0f} s; read {self.log}")
            tick(passed)
            time.sleep(0.5)

    def _healthy(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self.address}/health", timeout=5) as answer:
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self, signal_number: int = signal.SIGINT) -> int:
        """Send the signal to the ``vllm serve`` process alone and return its exit code.

        Raises :class:`ServerError` if it is still there after :data:`KILL_AFTER_S`; then it was killed.
        """
        if self.process.poll() is None:
            self.process.send_signal(signal_number)
        try:
            return self.process.wait(KILL_AFTER_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise ServerError(
                f"the server was still there {KILL_AFTER_S:.0f} s after {signal.Signals(signal_number).name} and was "
                f"killed; read {self.log}"
            ) from None

    def kill(self) -> None:
        """End the server and its children, whatever they are doing. Nothing where it has ended."""
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


NOISE = ("Traceback", "force killing", "nanobind", "Cannot access accelerator device")
"""What a user must not see in the log of a server that ended well."""


def noise(log: str) -> str | None:
    """The first line of ``log`` that holds some :data:`NOISE`, or None."""
    return next((line for line in log.splitlines() if any(word in line for word in NOISE)), None)
