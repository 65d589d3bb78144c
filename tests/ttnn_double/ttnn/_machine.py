"""The machine that the double pretends to be, what it was asked, and what it refuses.

A child process reads its machine from the environment: ``TTNN_DOUBLE='{"cluster": "T3K", "chips": 8}'``, with any field
of :class:`Machine`. ``journal_file`` gets each call's name as it happens, so that it survives the process.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from pathlib import Path


def fatal(reason: str) -> RuntimeError:
    """An error in the form of ttnn's own: the reason stands below ``info:``."""
    return RuntimeError(f"TT_FATAL @ double.py:1: refused\ninfo:\n{reason}\nbacktrace:\n --- double")


@dataclass
class Machine:
    cluster: str = "T3K"
    arch: str = "wormhole_b0"
    chips: int = 8
    """0: ttnn is there and no chip is"""
    slow_dispatch: bool = False
    """as with TT_METAL_SLOW_DISPATCH_MODE: no traces"""
    eager: tuple[int, ...] = (1,)
    """queues that run a command as soon as nothing holds it; the others run it when somebody waits for it"""
    ignores_waits: bool = False
    """``wait_for_event`` does nothing: what then still works was never ordered by it"""
    fail: dict[str, str] = field(default_factory=dict)
    """call name to what it says when it fails"""
    hang: dict[str, float] = field(default_factory=dict)
    """call name to seconds it takes"""
    journal_file: str = ""
    journal: list[str] = field(default_factory=list)
    """names of the calls so far, with what tells them apart"""

    def call(self, name: str, detail: str = "") -> None:
        """Write a call down, then fail or hang as it was told to."""
        line = f"{name} {detail}".rstrip()
        self.journal.append(line)
        if self.journal_file:
            with Path(self.journal_file).open("a", encoding="utf-8") as file:
                print(line, file=file)
        if name in self.hang:
            time.sleep(self.hang[name])
        if name in self.fail:
            raise fatal(self.fail[name])

    def require_chips(self) -> None:
        if self.chips < 1:
            raise fatal("No chips detected in the cluster")


def _from_environment() -> Machine:
    asked = os.environ.get("TTNN_DOUBLE", "")
    return Machine(**json.loads(asked)) if asked else Machine()


_current = [_from_environment()]


def machine() -> Machine:
    return _current[0]


def plug_in(new: Machine) -> Machine:
    """Pretend to be another machine from now on."""
    _current[0] = new
    return new
