"""The command queue, its events, latency and faults."""
from __future__ import annotations

import threading
import time
from typing import Any

import pytest
from structlog.testing import capture_logs

from stepshape.adapters.emulator.mesh.command_queue import MeshClosedError
from stepshape.adapters.emulator.mesh.device import EmulatedMesh, MeshOpenError, open_emulated_mesh
from stepshape.adapters.emulator.mesh.faults import (
    Fault,
    FaultClock,
    FaultError,
    FaultKind,
    InjectedFaultError,
    read_faults,
)
from stepshape.adapters.emulator.mesh.latency import LatencyError, LatencyModel, read_latency
from stepshape.ports.mesh import Mesh
from stepshape.ports.step import Phase


def test_commands_run_in_order_and_events_say_how_far() -> None:
    mesh: EmulatedMesh = open_emulated_mesh((2, 4))
    gate = threading.Event()
    ran: list[int] = []

    def one() -> None:
        gate.wait()
        ran.append(1)

    def two() -> str:
        ran.append(2)
        return "result"

    first, second = mesh.submit(one), mesh.submit(two)
    after = mesh.record_event()
    assert not first.done() and not second.done() and not after.done()
    assert not mesh.event_done(after)
    gate.set()
    mesh.synchronize(after)
    assert ran == [1, 2]
    assert first.done() and second.result() == "result"
    mesh.close()


def test_a_command_that_raises_raises_from_its_event_and_no_other() -> None:
    mesh = open_emulated_mesh((1, 1))

    def fails() -> None:
        raise ZeroDivisionError("here")

    bad, good = mesh.submit(fails), mesh.submit(lambda: 5)
    for _ in range(2):
        with pytest.raises(ZeroDivisionError, match="here"):
            bad.synchronize()
    assert good.result() == 5
    mesh.close()


def test_closing_is_idempotent_logged_once_and_ends_what_waits() -> None:
    mesh: Mesh = open_emulated_mesh((8, 4))
    assert isinstance(mesh, EmulatedMesh)
    started, gate = threading.Event(), threading.Event()

    def first() -> bool:
        started.set()
        return gate.wait()

    running = mesh.submit(first)
    started.wait()  # else a busy machine closes the mesh before its thread took the first command
    waiting = mesh.submit(lambda: 1)
    closer = threading.Thread(target=mesh.close)
    with capture_logs() as logs:
        closer.start()
        while not mesh.closed:
            time.sleep(0.001)
        gate.set()
        closer.join()
        mesh.close()
    running.synchronize()
    with pytest.raises(MeshClosedError, match="before this command ran"):
        waiting.synchronize()
    with pytest.raises(MeshClosedError, match="open a new one"):
        mesh.submit(lambda: 1)
    assert [(line["event"], line["mesh"]) for line in logs] == [("mesh_closed", "8x4")]


def test_submeshes_tile_the_mesh_and_share_its_queue() -> None:
    mesh = open_emulated_mesh((2, 4))
    columns = mesh.create_submeshes((2, 1))
    assert [piece.device_ids for piece in columns] == [(0, 4), (1, 5), (2, 6), (3, 7)]
    assert [piece.num_devices for piece in columns] == [2] * 4
    ran: list[int] = []
    for number, piece in enumerate(columns):
        piece.submit(lambda number=number: ran.append(number))  # type: ignore[misc]
    columns[0].close()
    mesh.synchronize(mesh.record_event())
    assert ran == [0, 1, 2, 3]
    with pytest.raises(MeshOpenError, match="2x3 do not tile a 2x4 mesh"):
        mesh.create_submeshes((2, 3))
    mesh.close()
    assert columns[0].closed


@pytest.mark.parametrize(
    ("shape", "available", "words"),
    [((8, 4), 8, "needs 32 chips and 8 are there"), ((8, 8), 32, "needs 64 chips"), ((0, 4), 32, "has no chips")],
)
def test_a_mesh_that_is_not_there_is_refused(shape: tuple[int, int], available: int, words: str) -> None:
    with pytest.raises(MeshOpenError, match=words):
        open_emulated_mesh(shape, available=available)


def test_an_event_of_something_else_is_refused() -> None:
    mesh = open_emulated_mesh((1, 1))
    with pytest.raises(TypeError, match="int is not an event of the emulated mesh"):
        mesh.synchronize(3)
    mesh.close()


# -- latency


def test_a_step_takes_what_the_table_says() -> None:
    table = LatencyModel(prefill_ms=5, prefill_token_ms=0.5, decode_ms=10, decode_row_ms=1)
    assert table.seconds(Phase.PREFILL, rows=3, tokens=100) == pytest.approx(0.055)
    assert table.seconds(Phase.DECODE, rows=8, tokens=8) == pytest.approx(0.018)
    assert table.seconds(Phase.EMPTY, rows=8, tokens=8) == 0


def test_a_step_lasts_at_least_its_latency() -> None:
    mesh = open_emulated_mesh((1, 1), latency=LatencyModel(decode_ms=30))
    begin = time.monotonic()
    mesh.submit(lambda: None, phase=Phase.DECODE, rows=1, tokens=1).synchronize()
    assert time.monotonic() - begin >= 0.03  # a lower bound; how late it may be is not asserted
    mesh.close()


def test_a_latency_table_is_read_from_text() -> None:
    assert read_latency('{"decode_ms": 12}') == LatencyModel(decode_ms=12)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "is not JSON"),
        ("[]", "is a list"),
        ('{"decode": 1}', "key 'decode' is unknown"),
        ('{"decode_ms": -1}', "decode_ms=-1 is not a time"),
        ('{"decode_ms": "fast"}', "decode_ms='fast' is not a time"),
        ('{"decode_ms": true}', "decode_ms=True is not a time"),
    ],
)
def test_a_latency_table_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(LatencyError, match=words):
        read_latency(text)


# -- faults


def test_faults_count_steps_of_a_phase_or_of_both() -> None:
    any_third = Fault(kind=FaultKind.READBACK_ERROR, step=3)
    second_decode = Fault(kind=FaultKind.SLOW, step=2, phase=Phase.DECODE, seconds=1)
    clock = FaultClock((any_third, second_decode))
    met = [clock.next(phase) for phase in (Phase.DECODE, Phase.PREFILL, Phase.DECODE, Phase.DECODE)]
    assert met == [(), (), (any_third, second_decode), ()]


def test_a_readback_error_is_raised_from_its_step_alone() -> None:
    mesh = open_emulated_mesh((1, 1), faults=(Fault(kind=FaultKind.READBACK_ERROR, step=2, phase=Phase.DECODE),))
    ran: list[int] = []
    events = [mesh.submit(lambda: ran.append(1), phase=Phase.DECODE) for _ in range(3)]
    events[0].synchronize()
    with pytest.raises(InjectedFaultError, match="decode step 2"):
        events[1].synchronize()
    events[2].synchronize()
    # The step itself ran: only its readback is lost.
    assert len(ran) == 3
    mesh.close()


def test_a_hang_stops_the_queue_until_the_mesh_is_closed() -> None:
    mesh = open_emulated_mesh((1, 1), faults=(Fault(kind=FaultKind.HANG, step=1, seconds=3600),))
    event = mesh.submit(lambda: 1, phase=Phase.DECODE)
    assert not event.done()
    mesh.close()
    assert event.done()


def test_faults_and_latency_come_from_the_environment() -> None:
    environment = {
        "STEPSHAPE_TT_FAULTS": '[{"kind": "readback_error", "step": 1, "phase": "prefill"}]',
        "STEPSHAPE_TT_LATENCY": '{"prefill_ms": 1}',
    }
    mesh = open_emulated_mesh((1, 1), environment=environment)
    assert mesh.latency == LatencyModel(prefill_ms=1)
    with pytest.raises(InjectedFaultError):
        mesh.submit(lambda: 1, phase=Phase.PREFILL).synchronize()
    mesh.close()


def test_slow_steps_are_read_from_text() -> None:
    assert read_faults('[{"kind": "slow", "step": 4, "seconds": 0.5}]') == (
        Fault(kind=FaultKind.SLOW, step=4, seconds=0.5),
    )


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("nonsense", "are not JSON"),
        ("{}", "are a dict"),
        ("[3]", "fault 0 is a int"),
        ('[{"kind": "slow", "step": 1, "when": 2}]', "unknown key 'when'"),
        ('[{"kind": "melt", "step": 1}]', "kind 'melt'"),
        ('[{"kind": "readback_error"}]', "has no step"),
        ('[{"kind": "readback_error", "step": 0}]', "step 0 is not a step number"),
        ('[{"kind": "readback_error", "step": 1, "phase": "both"}]', "phase 'both'"),
        ('[{"kind": "hang", "step": 1}]', "seconds=0.0"),
    ],
)
def test_faults_that_cannot_be_read(text: str, words: str) -> None:
    with pytest.raises(FaultError, match=words):
        read_faults(text)


def test_reading_from_two_threads_gives_both_the_same() -> None:
    mesh = open_emulated_mesh((1, 1))
    gate = threading.Event()
    event = mesh.submit(lambda: (gate.wait(), object())[1])
    seen: list[Any] = []
    readers = [threading.Thread(target=lambda: seen.append(event.result())) for _ in range(2)]
    for reader in readers:
        reader.start()
    gate.set()
    for reader in readers:
        reader.join()
    assert seen[0] is seen[1]
    mesh.close()
