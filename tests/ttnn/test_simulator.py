"""The reference model on tt-metal's simulator, where the environment names one."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

SIMULATOR = os.environ.get("TT_METAL_SIMULATOR", "").strip()

pytestmark = pytest.mark.skipif(
    not SIMULATOR, reason="TT_METAL_SIMULATOR names no simulator of the chips; the double of ttnn stands in for it"
)

SLOW = {"TT_METAL_SLOW_DISPATCH_MODE": "1"}


@pytest.mark.parametrize(
    ("settings", "tt"),
    [(SLOW, '{"trace_mode": "none"}'), ({}, '{"trace_mode": "none"}'), ({}, '{"trace_mode": "all"}')],
    ids=["slow-dispatch", "fast-dispatch-no-trace", "fast-dispatch-traced"],
)
def test_every_token_is_the_twins(settings: dict[str, str], tt: str) -> None:
    command = (sys.executable, "-m", "stepshape.plugins.command_line.main", "bringup")
    result = subprocess.run(
        [*command, "--tokens", "6", "--rows", "2", "--tt", tt],
        env={**os.environ, "MESH_DEVICE": "N150", **settings},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("every token as expected") == 2


def test_the_doctor_sees_the_chips() -> None:
    command = (sys.executable, "-m", "stepshape.plugins.command_line.main", "doctor")
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"(simulator {SIMULATOR})" in result.stdout, result.stdout + result.stderr
