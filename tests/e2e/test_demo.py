"""``stepshape demo`` from a terminal: to its end, and to Ctrl-C."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest


def start(smollm2: Path, runs: Path) -> subprocess.Popen[str]:
    words = ["stepshape.plugins.command_line.main", "demo", "--folder", str(smollm2), "--runs", str(runs)]
    return subprocess.Popen(
        [sys.executable, "-m", *words],
        env={**os.environ, "COLUMNS": "160"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(420)
def test_the_demo_ends_with_a_table_and_no_complaint(smollm2: Path, tmp_path: Path) -> None:
    demo = start(smollm2, tmp_path)
    out, err = demo.communicate()
    assert (demo.returncode, err.strip()) == (0, "")
    assert "12 chats answered" in out and "What the mesh did" in out and "The server ended with exit code 0" in out
    report = json.loads((tmp_path / "demo.json").read_text(encoding="utf-8"))
    assert report["admitted"] == 12
    assert len(report["tokens_by_lane"]) == 4 and all(report["tokens_by_lane"])
    assert {"min_p", "logprobs", "structured output"} == set(report["host_reasons"])
    assert report["rows_sampled"]["device"] > report["rows_sampled"]["host"] > 0
    assert {why.split(":")[0] for why in report["overlap"]} == {"kept", "drained"}
    assert "mesh_closed" in (tmp_path / "demo.log").read_text(encoding="utf-8")


def test_ctrl_c_leaves_nothing_behind(smollm2: Path, tmp_path: Path) -> None:
    demo = start(smollm2, tmp_path)
    log = tmp_path / "demo.log"
    end = time.monotonic() + 120
    while not (log.exists() and "Tenstorrent (emulated)" in log.read_text(encoding="utf-8")):
        assert time.monotonic() < end and demo.poll() is None
        time.sleep(0.1)
    server = psutil.Process(demo.pid).children(recursive=True)
    assert server
    demo.send_signal(signal.SIGINT)
    _, err = demo.communicate()
    assert (demo.returncode, err.strip()) == (130, "stepshape: interrupted; nothing was left behind.")
    assert [process for process in server if process.is_running()] == []
