"""What chips there are and how they lie, asked in a child process: ttnn locks the chips it looks at, and may hang.

The parent stays free of ttnn. Whatever the child does, the parent has an answer or an error within its timeouts.
"""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

import attrs

from ...domain.device_groups import DeviceGroup, check_groups, group_order, piece_shape
from .reasons import first_line

ANSWER_SECONDS = 60.0
"""for the child's answer: it opens the machine's whole mesh (contract 7.6)"""
EXIT_SECONDS = 5.0
"""for the child to end by itself once it has answered"""


class DiscoveryError(RuntimeError):
    """The machine could not be looked at."""


@attrs.frozen(kw_only=True)
class Machine:
    """What ttnn says of this machine."""

    chips: int
    """that this process may use (``TT_VISIBLE_DEVICES``)"""
    cluster: str
    """``ttnn.cluster.ClusterType``'s member"""
    arch: str


def look_at_machine(*, answer_seconds: float = ANSWER_SECONDS, path: tuple[str, ...] = ()) -> Machine:
    """Count the chips and name the cluster. ``path``: folders in which the child looks for ttnn first.

    Raises :class:`DiscoveryError`.
    """
    answer = _ask(_machine, (), answer_seconds, path)
    return Machine(chips=answer[0], cluster=answer[1], arch=answer[2])


def discover_groups(
    mesh: tuple[int, int], count: int, *, answer_seconds: float = ANSWER_SECONDS, path: tuple[str, ...] = ()
) -> tuple[DeviceGroup, ...]:
    """Cut the machine's ``mesh`` into ``count`` groups, in the order in which ranks get them (contract 7.6).

    To be called where the whole machine is visible, and before this process has opened a chip. Raises
    :class:`DiscoveryError`, or ``DeviceGroupError`` for what was found.
    """
    shape = piece_shape(mesh, count)
    kind, found = _ask(_groups, (mesh, shape), answer_seconds, path)
    groups = [DeviceGroup(tuple(ids), (piece[0], piece[1])) for ids, piece in found]
    check_groups(groups, count)
    return tuple(groups[index] for index in group_order(kind, mesh, count))


def _ask(question: Callable[..., Any], arguments: tuple[Any, ...], seconds: float, path: tuple[str, ...]) -> Any:
    """Run ``question`` in a spawned process; return what it returned."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    child = context.Process(target=_answer, args=(theirs, question, arguments, path), daemon=True)
    child.start()
    theirs.close()
    patience = EXIT_SECONDS
    try:
        if not ours.poll(seconds):
            patience = 0.0
            raise DiscoveryError(
                f"looking at the Tenstorrent chips took longer than {seconds:.0f} s; another process may hold them, or "
                "they need a reset (tt-smi -r)"
            )
        try:
            good, value = ours.recv()
        except EOFError:
            child.join(EXIT_SECONDS)
            raise DiscoveryError(
                f"the process that looks at the Tenstorrent chips ended with {child.exitcode} and said nothing; run "
                "stepshape doctor"
            ) from None
        if not good:
            raise DiscoveryError(value)
        return value
    finally:
        ours.close()
        _end(child, patience)


def _end(child: Any, patience: float) -> None:
    """Give the child ``patience`` seconds to end; then terminate it; if that does not help, kill it."""
    child.join(patience)
    if child.is_alive():
        child.terminate()
        child.join(EXIT_SECONDS)
    if child.is_alive():
        child.kill()
        child.join()
    child.close()


def _answer(pipe: Connection, question: Callable[..., Any], arguments: tuple[Any, ...], path: tuple[str, ...]) -> None:
    """The child. Sends (True, value), or (False, cause and mend)."""
    # ttnn talks on standard output, which is the parent's: what the parent prints there is for people or a pipe.
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    sys.path[:0] = path
    try:
        value = question(*arguments)
    except ImportError as error:
        pipe.send((False, f"ttnn cannot be imported ({first_line(error)}); install it, or mend its installation"))
    except BaseException as error:
        simulator = os.environ.get("TT_METAL_SIMULATOR")
        where = f"check TT_METAL_SIMULATOR={simulator}" if simulator else "check the driver and /dev/tenstorrent"
        pipe.send((False, f"ttnn finds no Tenstorrent chips ({first_line(error)}); {where}"))
    else:
        pipe.send((True, value))
    pipe.close()


def _machine() -> tuple[int, str, str]:
    import ttnn

    from .mesh import cluster_name

    return ttnn.GetNumAvailableDevices(), cluster_name(), ttnn.get_arch_name()


def _groups(mesh: tuple[int, int], shape: tuple[int, int]) -> tuple[str, list[tuple[list[int], tuple[int, int]]]]:
    import ttnn

    from .mesh import MeshSettings, cluster_name, open_mesh

    kind = cluster_name()
    opened = open_mesh(MeshSettings(shape=mesh))
    try:
        pieces = opened.handle.create_submeshes(ttnn.MeshShape(*shape))
        return kind, [(piece.get_device_ids(), (piece.shape[0], piece.shape[1])) for piece in pieces]
    finally:
        opened.close()
