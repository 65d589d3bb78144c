"""The real ttnn on a machine that it mocks: meshes open, are cut and close, and nothing runs on them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

ttnn = pytest.importorskip("ttnn", reason="the real ttnn is in the environment of make test-ttnn only")

HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def on_n300(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], str]:
    """Run a script in a process in which ttnn takes this machine for one N300."""
    program = Path(ttnn.__file__).parent / "runtime" / "sfpi" / "compiler" / "bin" / "riscv-tt-elf-g++"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        source = (HERE / "compiler.py").read_text(encoding="utf-8")
        program.write_text(f"#!{sys.executable} -IS\n{source}", encoding="utf-8")
        program.chmod(0o755)
    cache = tmp_path_factory.mktemp("cache")

    def run(script: str) -> str:
        result = subprocess.run(
            [sys.executable, "-c", script],
            env={
                **os.environ,
                "TT_METAL_MOCK_CLUSTER_DESC_PATH": str(HERE / "n300.yaml"),
                "TT_METAL_CACHE": str(cache),
                "TT_METAL_DISABLE_BACKTRACE": "1",
            },
            # ttnn leaves reports where it runs.
            cwd=cache,
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, (result.stdout + result.stderr)[-3000:]
        return result.stdout

    return run


def said(output: str) -> list[str]:
    """Our own lines: ttnn talks on standard output too."""
    return [line.removeprefix("> ") for line in output.splitlines() if line.startswith("> ")]


def test_the_chip_behind_the_first_is_counted(on_n300: Callable[[str], str]) -> None:
    script = """
from stepshape.adapters.ttnn.discovery import look_at_machine
if __name__ == "__main__":
    print(">", look_at_machine())
"""
    assert said(on_n300(script)) == ["Machine(chips=2, cluster='N300', arch='wormhole_b0')"]


def test_a_mesh_opens_with_its_fabric_is_cut_and_closes_clean(on_n300: Callable[[str], str]) -> None:
    script = """
import ttnn
from stepshape.adapters.ttnn.mesh import MeshSettings, open_mesh
from stepshape.domain.tt_options import DispatchCoreAxis, FabricReliability
for axis in (None, DispatchCoreAxis.ROW):
    mesh = open_mesh(MeshSettings(
        shape=(1, 2), trace_region_size=10_000_000, l1_small_size=1024, num_command_queues=2,
        fabric_reliability_mode=FabricReliability.RELAXED_INIT, dispatch_core_axis=axis,
    ))
    print(">", mesh.shape, mesh.num_devices, ttnn.get_fabric_config().name)
    print(">", [piece.get_device_ids() for piece in mesh.handle.create_submeshes(ttnn.MeshShape(1, 1))])
    mesh.close()
    print(">", mesh.closed, ttnn.get_fabric_config().name)
"""
    one = ["(1, 2) 2 FABRIC_1D", "[[0], [1]]", "True DISABLED"]
    assert said(on_n300(script)) == one * 2


def test_groups_are_found_by_a_child_that_opens_the_mesh(on_n300: Callable[[str], str]) -> None:
    script = """
from stepshape.adapters.ttnn.discovery import discover_groups
if __name__ == "__main__":
    print(">", *(f"{group.visible} {group.shape}" for group in discover_groups((1, 2), 2)))
"""
    assert said(on_n300(script)) == ["0 (1, 1) 1 (1, 1)"]


def test_a_mesh_that_is_too_large_is_told_and_leaves_no_fabric(on_n300: Callable[[str], str]) -> None:
    script = """
import ttnn
from stepshape.adapters.ttnn.mesh import MeshOpenError, MeshSettings, open_mesh
try:
    open_mesh(MeshSettings(shape=(1, 4)))
except MeshOpenError as error:
    print(">", str(error).startswith("the 1x4 mesh did not open ("), "backtrace" in str(error))
print(">", ttnn.get_fabric_config().name)
"""
    assert said(on_n300(script)) == ["True False", "DISABLED"]
