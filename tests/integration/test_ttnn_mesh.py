"""The binding of a real mesh, on the double of ttnn: the order of its life, and who closes it when it goes wrong."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from stepshape.domain.device_groups import DeviceGroup
from stepshape.domain.fabric import FABRIC_BY_CLUSTER
from stepshape.domain.tt_options import DispatchCoreAxis, FabricReliability
from tests.double import FOLDER, environment, plug_in


def opened(machine: Any, **settings: Any) -> Any:
    """A mesh on ``machine``; imported here, where the double is on the path."""
    from stepshape.adapters.ttnn.mesh import MeshSettings, open_mesh

    machine.journal.clear()
    return open_mesh(MeshSettings(**settings))


def test_the_order_of_a_whole_life() -> None:
    machine = plug_in(cluster="T3K", chips=8)
    mesh = opened(machine, shape=(2, 4), trace_region_size=50_000_000, worker_l1_size=1_345_000, l1_small_size=768)
    assert machine.journal == [
        "get_cluster_type",
        "set_fabric_config FABRIC_1D STRICT_INIT planes=None DISABLED DISABLED DEFAULT",
        "open_mesh_device 2x4 queues=1 trace=50000000 l1=1345000 small=768 axis=None",
    ]
    assert (mesh.shape, mesh.num_devices, mesh.closed) == ((2, 4), 8, False)
    machine.journal.clear()
    import ttnn

    mesh.handle.create_submeshes(ttnn.MeshShape(2, 2))
    mesh.close()
    mesh.close()
    assert machine.journal == [
        "create_submeshes 2x2",
        "ReadDeviceProfiler",
        "close_mesh_device 2x2",
        "close_mesh_device 2x2",
        "close_mesh_device 2x4",
        "set_fabric_config DISABLED",
    ]
    with pytest.raises(RuntimeError, match="the mesh is closed; open a new one"):
        _ = mesh.handle


def test_one_chip_sets_no_fabric_and_disables_none() -> None:
    machine = plug_in(cluster="N150", chips=1)
    opened(machine, shape=(1, 1), fabric_config="FABRIC_2D", num_command_queues=2).close()
    assert [line.split()[0] for line in machine.journal] == [
        "get_cluster_type",
        "open_mesh_device",
        "ReadDeviceProfiler",
        "close_mesh_device",
    ]


@pytest.mark.parametrize("cluster", sorted(FABRIC_BY_CLUSTER))
def test_a_galaxy_has_the_fabric_of_its_kind(cluster: str) -> None:
    machine = plug_in(cluster=cluster, chips=32)
    opened(machine, shape=(8, 4)).close()
    assert machine.journal[1].startswith(f"set_fabric_config {FABRIC_BY_CLUSTER[cluster]} STRICT_INIT")


def test_the_operator_goes_before_the_model() -> None:
    machine = plug_in(cluster="GALAXY", chips=32)
    opened(
        machine,
        shape=(8, 4),
        model_fabric={"config": "FABRIC_2D", "num_planes": 2, "fabric_tensix_config": "MUX"},
        fabric_config="FABRIC_1D",
        fabric_reliability_mode=FabricReliability.RELAXED_INIT,
        dispatch_core_axis=DispatchCoreAxis.COL,
    ).close()
    assert machine.journal[1] == "set_fabric_config FABRIC_1D RELAXED_INIT planes=2 MUX DISABLED DEFAULT"
    assert machine.journal[2].endswith("axis=COL")


@pytest.mark.parametrize(
    ("machine", "settings", "words"),
    [
        ({"chips": 0}, {}, "ttnn finds no Tenstorrent machine .No chips detected in the cluster.; check"),
        ({}, {"fabric_config": "RING"}, "fabric_config is 'RING', which ttnn's FabricConfig does not have; use one of"),
        ({}, {"model_fabric": {"num_planes": "two"}}, "num_planes of the model's fabric_config is 'two'"),
        ({"chips": 4}, {}, "the 2x4 mesh did not open .a 2x4 mesh is larger than the system mesh of 4.; check MESH"),
        ({"fail": {"open_mesh_device": "lock held"}}, {}, r"did not open \(lock held\)"),
    ],
)
def test_a_mesh_that_does_not_open_says_why_and_leaves_no_fabric(
    machine: dict[str, Any], settings: dict[str, Any], words: str
) -> None:
    plugged = plug_in(**{"cluster": "T3K", "chips": 8, **machine})
    with pytest.raises(RuntimeError, match=words):
        opened(plugged, shape=(2, 4), **settings)
    fabric = [line for line in plugged.journal if line.startswith("set_fabric_config")]
    assert not fabric or fabric[-1] == "set_fabric_config DISABLED"


def test_a_close_that_fails_half_way_goes_on_to_the_end() -> None:
    machine = plug_in(cluster="T3K", chips=8, fail={"ReadDeviceProfiler": "no profiler"})
    mesh = opened(machine, shape=(1, 8))
    with pytest.raises(RuntimeError, match=r"did not close cleanly \(reading the profiler: no profiler\); reset"):
        mesh.close()
    assert machine.journal[-2:] == ["close_mesh_device 1x8", "set_fabric_config DISABLED"]
    mesh.close()


def test_events_are_ttnns() -> None:
    machine = plug_in(cluster="N150", chips=1)
    mesh = opened(machine, shape=(1, 1))
    import ttnn

    event = ttnn.record_event(mesh.handle, 0)
    assert not mesh.event_done(event)
    mesh.synchronize(event)
    assert machine.journal[-1] == "event_synchronize"
    mesh.close()


LIFE = """
import os, signal, sys, time
from stepshape.adapters.ttnn.mesh import MeshSettings, open_mesh
mesh = open_mesh(MeshSettings(shape=(1, 8)))
print("open", flush=True)
exec(sys.argv[1])
"""


def life(journal: Path, then: str, **machine: Any) -> subprocess.Popen[str]:
    """A process that opens a mesh, says so, and does ``then``."""
    return subprocess.Popen(
        [sys.executable, "-c", LIFE, then],
        env=environment(cluster="T3K", chips=8, journal_file=str(journal), **machine),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def closed_at_the_end(journal: Path) -> bool:
    return journal.read_text().splitlines()[-2:] == ["close_mesh_device 1x8", "set_fabric_config DISABLED"]


@pytest.mark.parametrize(
    ("then", "status"),
    [
        ("pass", 0),
        ("raise ValueError('the model did not load')", 1),
        ("sys.exit(3)", 3),
        ("signal.raise_signal(signal.SIGTERM)", 128 + signal.SIGTERM),
        ("signal.raise_signal(signal.SIGINT)", -signal.SIGINT),
    ],
)
def test_the_end_of_the_process_closes_the_mesh(tmp_path: Path, then: str, status: int) -> None:
    process = life(tmp_path / "journal", then)
    process.communicate()
    assert process.returncode == status
    assert closed_at_the_end(tmp_path / "journal")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_from_outside_closes_the_mesh(tmp_path: Path, number: signal.Signals) -> None:
    process = life(tmp_path / "journal", "time.sleep(60)")
    assert process.stdout is not None
    assert "open\n" in iter(process.stdout.readline, "")
    process.send_signal(number)
    process.communicate()
    assert closed_at_the_end(tmp_path / "journal")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("during", ["open_mesh_device", "close_mesh_device"])
def test_a_signal_during_opening_or_closing_waits_for_its_end(
    tmp_path: Path, during: str, number: signal.Signals
) -> None:
    process = life(tmp_path / "journal", "mesh.close(); print('went on', flush=True)", hang={during: 1.0})
    journal = tmp_path / "journal"
    while not journal.exists() or during not in journal.read_text():
        assert process.poll() is None, process.communicate()
    process.send_signal(number)
    out, _ = process.communicate()
    assert closed_at_the_end(journal)
    assert process.returncode != 0
    assert "went on" not in out


def test_a_handler_that_is_there_is_left_alone(tmp_path: Path) -> None:
    process = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import signal\nsignal.signal(signal.SIGTERM, lambda *a: print('mine', flush=True))\n"
            + LIFE.replace("exec(sys.argv[1])", "signal.raise_signal(signal.SIGTERM); mesh.close()\n")
            + "signal.raise_signal(signal.SIGTERM)",
        ],
        env=environment(cluster="T3K", chips=8),
        stdout=subprocess.PIPE,
        text=True,
    )
    out, _ = process.communicate()
    assert [line for line in out.splitlines() if line in ("open", "mine")] == ["open", "mine", "mine"]
    assert process.returncode == 0


# -- discovery


@pytest.fixture
def as_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    """Have the children of this process be on a machine; returns their journal."""

    def be(**fields: Any) -> Path:
        journal = tmp_path / "journal"
        monkeypatch.setenv("TTNN_DOUBLE", environment(journal_file=str(journal), **fields)["TTNN_DOUBLE"])
        return journal

    return be


def test_the_machine_is_looked_at_by_a_child(as_machine: Any) -> None:
    from stepshape.adapters.ttnn.discovery import look_at_machine

    as_machine(cluster="T3K", chips=8)
    machine = look_at_machine(path=(str(FOLDER),))
    assert (machine.chips, machine.cluster, machine.arch) == (8, "T3K", "wormhole_b0")


def test_a_galaxy_in_four_groups_follows_its_ring(as_machine: Any) -> None:
    from stepshape.adapters.ttnn.discovery import discover_groups

    journal = as_machine(cluster="GALAXY", chips=32)
    groups = discover_groups((4, 8), 4, path=(str(FOLDER),))
    first = [group.ids[:2] for group in groups]
    assert first == [(0, 1), (4, 5), (6, 7), (2, 3)]
    assert groups[0] == DeviceGroup((0, 1, 8, 9, 16, 17, 24, 25), (4, 2))
    assert journal.read_text().splitlines()[-1] == "set_fabric_config DISABLED"


@pytest.mark.parametrize(
    ("machine", "words"),
    [
        ({"chips": 0}, r"ttnn finds no Tenstorrent chips \(No chips detected in the cluster\)"),
        ({"hang": {"GetNumAvailableDevices": 60.0}}, "took longer than 2 s; another process may hold them"),
    ],
)
def test_a_machine_that_does_not_answer_is_an_error_in_time(as_machine: Any, machine: Any, words: str) -> None:
    from stepshape.adapters.ttnn.discovery import DiscoveryError, look_at_machine

    as_machine(**machine)
    seconds = 2.0 if "hang" in machine else 60.0
    with pytest.raises(DiscoveryError, match=words):
        look_at_machine(answer_seconds=seconds, path=(str(FOLDER),))


def test_a_ttnn_that_cannot_be_imported_is_not_told_as_absent_chips(tmp_path: Path) -> None:
    from stepshape.adapters.ttnn.discovery import DiscoveryError, look_at_machine

    (tmp_path / "ttnn.py").write_text("import nothing_such\n")
    with pytest.raises(DiscoveryError, match=r"^ttnn cannot be imported \(No module named 'nothing_such'\)"):
        look_at_machine(path=(str(tmp_path),))


def _dies() -> None:
    os._exit(7)


def test_a_child_that_dies_is_told(as_machine: Any) -> None:
    from stepshape.adapters.ttnn.discovery import DiscoveryError, _ask

    with pytest.raises(DiscoveryError, match="ended with 7 and said nothing"):
        _ask(_dies, (), 60.0, ())
