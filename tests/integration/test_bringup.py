"""``stepshape doctor`` and ``stepshape bringup``: without a device, and on the double of ttnn as a simulator."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepshape.plugins.command_line.bringup import first_difference
from stepshape.plugins.command_line.doctor import read_firmware
from stepshape.plugins.command_line.main import main
from tests.double import environment, plug_in

COMMAND = (sys.executable, "-m", "stepshape.plugins.command_line.main")
SOURCE = str(Path(__file__).resolve().parents[2] / "typings")


def stepshape(*arguments: str, **machine: Any) -> subprocess.CompletedProcess[str]:
    """Run the command on a machine; without fields, on this one without the double."""
    settings = {**os.environ, "PYTHONPATH": SOURCE}
    if machine:
        settings = {**environment(**machine), "TT_METAL_SIMULATOR": "the double", "MESH_DEVICE": "N300"}
    return subprocess.run([*COMMAND, *arguments], env=settings, capture_output=True, text=True, check=False)


@pytest.fixture(scope="module")
def no_device() -> None:
    if Path("/dev/tenstorrent").exists():
        pytest.skip("this machine has Tenstorrent chips")


@pytest.mark.usefixtures("no_device")
def test_bringup_without_a_device_is_one_line_and_two() -> None:
    result = stepshape("bringup")
    assert (result.returncode, result.stdout) == (2, "")
    (line,) = result.stderr.splitlines()
    assert line.startswith("stepshape: no Tenstorrent device: ")


@pytest.mark.usefixtures("no_device")
def test_the_doctor_without_a_device_says_so_and_two() -> None:
    result = stepshape("doctor")
    assert result.returncode == 2
    device = [line for line in result.stdout.splitlines() if "device" in line]
    assert len(device) == 1
    assert device[0].startswith("missing  no Tenstorrent device: ")
    assert "found    vLLM" in result.stdout


def test_the_doctor_sees_a_machine_and_one_whose_chips_are_gone() -> None:
    result = stepshape("doctor", cluster="N300", chips=2)
    assert "2 chips, cluster N300, wormhole_b0 (simulator the double)" in result.stdout
    gone = stepshape("doctor", cluster="N300", chips=0)
    assert gone.returncode == 2
    assert "no Tenstorrent device: ttnn finds no Tenstorrent chips (No chips detected in the cluster)" in gone.stdout


def test_the_doctor_may_leave_the_device_alone() -> None:
    result = stepshape("doctor", "--environment-only", cluster="N300", chips=0)
    assert "Tenstorrent device" not in result.stdout
    assert result.returncode == 1  # ttnn is a double, and no package


@pytest.fixture
def on_machine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Have this process be on a machine whose chips were counted; returns its double."""

    def be(**fields: Any) -> Any:
        machine = plug_in(cluster="N300", **fields)
        monkeypatch.setenv("TT_METAL_SIMULATOR", "the double")
        monkeypatch.setenv("MESH_DEVICE", "N300")
        monkeypatch.setenv("STEPSHAPE_TT_CHIPS", str(machine.chips))
        return machine

    return be


@pytest.mark.parametrize("options", [(), ("--tt", '{"trace_mode": "none"}'), ("--lanes", "2")])
def test_bringup_checks_every_token_in_sync_and_async(
    on_machine: Any, capsys: pytest.CaptureFixture[str], options: tuple[str, ...]
) -> None:
    machine = on_machine(chips=2, slow_dispatch="--tt" in options)
    assert main(["bringup", "--tokens", "6", "--rows", "2", *options]) == 0
    said = capsys.readouterr().out
    assert said.count("every token as expected") == 2
    assert said.rstrip().endswith("closed")
    assert machine.journal[-1] == "set_fabric_config DISABLED"


@pytest.mark.parametrize(
    ("options", "machine", "status", "words"),
    [
        ((), {"chips": 1}, 2, "MESH_DEVICE=N300 wants a 1x2 mesh of 2 chips and 1 is there"),
        (("--lanes", "3"), {"chips": 2}, 1, "24 rows on a 1x2 mesh do not make 3 lanes"),
        (("--tt", "{"), {"chips": 2}, 1, "--tt: "),
        (("--tt", '{"fabric": 1}'), {"chips": 2}, 1, "has no option 'fabric'; did you mean fabric_config?"),
        ((), {"chips": 2, "fail": {"open_mesh_device": "lock held"}}, 1, "the 1x2 mesh did not open (lock held)"),
        ((), {"chips": 2, "fail": {"execute_trace": "device hung"}}, 1, "the mesh opened, then: device hung; run it"),
        ((), {"chips": 2, "slow_dispatch": True}, 1, """--tt '{"trace_mode": "none"}' to see whether traces are"""),
        ((), {"chips": 2, "fail": {"close_mesh_device": "nope"}}, 1, "nope"),
    ],
)
def test_bringup_that_cannot_run_says_why(
    on_machine: Any,
    capsys: pytest.CaptureFixture[str],
    options: tuple[str, ...],
    machine: dict[str, Any],
    status: int,
    words: str,
) -> None:
    on_machine(**machine)
    assert main(["bringup", *options]) == status
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(("number", "status"), [(signal.SIGINT, 130), (signal.SIGHUP, 129)])
def test_an_interrupted_bringup_closes_the_mesh(tmp_path: Path, number: signal.Signals, status: int) -> None:
    journal = tmp_path / "journal"
    machine = environment(cluster="N300", chips=2, journal_file=str(journal), hang={"execute_trace": 1.0})
    process = subprocess.Popen(
        [*COMMAND, "bringup", "--rows", "1"],
        env={**machine, "TT_METAL_SIMULATOR": "the double", "MESH_DEVICE": "N300"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while not journal.exists() or "execute_trace" not in journal.read_text():
        assert process.poll() is None, process.communicate()
    process.send_signal(number)
    _, errors = process.communicate()
    assert process.returncode == status
    assert "Traceback" not in errors
    assert journal.read_text().splitlines()[-2:] == ["close_mesh_device 1x2", "set_fabric_config DISABLED"]


def test_the_first_wrong_token_is_named() -> None:
    assert first_difference([[1, 2], [3, 4]], [[1, 2], [3, 4]]) is None
    assert first_difference([[1, 2], [3, 5]], [[1, 2], [3, 4]]) == "WRONG from token 1 of row 1 on: 5 in place of 4"


def test_firmware_is_read_where_the_driver_tells_it(tmp_path: Path) -> None:
    for card, version in (("tenstorrent!0", "19.3.0\n"), ("tenstorrent!1", "19.2.0\n")):
        (tmp_path / card).mkdir()
        (tmp_path / card / "tt_fw_bundle_ver").write_text(version)
    (tmp_path / "tenstorrent!2").mkdir()
    assert read_firmware(tmp_path) == ["19.3.0", "19.2.0"]
    assert read_firmware(tmp_path / "none") == []
