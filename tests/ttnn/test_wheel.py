"""Every name, member, parameter and default of ttnn that we use is in the real wheel as we use it.

Run by ``make test-ttnn``, in an environment of its own with the wheel and without torch.
"""

from __future__ import annotations

import ast
import importlib
import importlib.metadata
import importlib.util
from pathlib import Path

import pytest

from .signatures import of_definition, of_real
from .stub import ADAPTER, call_fault, chains, faults_of, signature_faults, stub_modules

ttnn = pytest.importorskip("ttnn", reason="the real ttnn is in the environment of make test-ttnn only")


def test_this_is_the_real_wheel_of_the_release_the_stub_was_read_from() -> None:
    assert importlib.metadata.version("ttnn") == "0.81.1"
    assert list(Path(ttnn.__file__).parent.glob("_ttnn*.so"))


@pytest.mark.parametrize("module", sorted(stub_modules()))
def test_the_stub_says_what_the_wheel_has(module: str) -> None:
    # ttnn.cluster is an attribute, and no module that could be imported by its name.
    real = ttnn
    for part in module.split(".")[1:]:
        real = getattr(real, part)
    assert list(faults_of(module, stub_modules()[module].body, real, vars(real))) == []


USED = sorted({(path.name, name) for path in ADAPTER.glob("*.py") for name, _ in chains(path) if "." in name})


def test_the_adapter_uses_ttnn_at_all() -> None:
    assert len({name for _, name in USED}) > 40
    assert {name for name, _ in USED} >= {"mesh.py", "discovery.py", "reference_program.py", "reference_model.py"}


@pytest.mark.parametrize(("file", "name"), USED)
def test_a_name_the_adapter_uses_is_there(file: str, name: str) -> None:
    found = ttnn
    for part in name.split(".")[1:]:
        assert hasattr(found, part), f"{file} uses {name}"
        found = getattr(found, part)


@pytest.mark.parametrize("path", sorted(ADAPTER.glob("*.py")), ids=lambda path: path.name)
def test_a_call_of_the_adapters_binds(path: Path) -> None:
    faults = []
    for name, call in chains(path):
        if call is not None:
            real = ttnn
            for part in name.split(".")[1:]:
                real = getattr(real, part)
            fault = call_fault(call, real)
            if fault is not None:
                faults.append(f"{path.name}:{call.lineno}: {name} {fault}")
    assert faults == []


def test_the_names_of_the_policy_are_members() -> None:
    from stepshape.domain.fabric import DEFAULT_FABRIC, FABRIC_BY_CLUSTER, MODEL_KEYS
    from stepshape.domain.tt_options import DispatchCoreAxis, FabricReliability

    for cluster, fabric in [*FABRIC_BY_CLUSTER.items(), ("N300", DEFAULT_FABRIC)]:
        assert hasattr(ttnn.cluster.ClusterType, cluster)
        assert hasattr(ttnn.FabricConfig, fabric)
    assert all(hasattr(ttnn.FabricReliabilityMode, mode.value) for mode in FabricReliability)
    assert all(hasattr(ttnn.DispatchCoreAxis, axis.value.upper()) for axis in DispatchCoreAxis)
    (parameters,) = of_real(ttnn.set_fabric_config)
    assert set(MODEL_KEYS) <= {parameter.name for parameter in parameters}


# -- the check itself: what is wrong in a stub is found


@pytest.mark.parametrize(
    ("definition", "fault"),
    [
        ("def synchronise_device(device): ...", "is not in the wheel"),
        ("def close_mesh_device(mesh): ...", "has no parameter mesh"),
        ("def close_mesh_device(): ...", "also needs mesh_device"),
        ("def open_mesh_device(mesh_shape=None, num_command_queues=1): ...", "num_command_queues at place 1"),
        ("def open_mesh_device(mesh_shape=None, *, num_command_queues=2): ...", "num_command_queues is 1, not 2"),
        ("def execute_trace(mesh_device, trace_id, *, blocking=False): ...", "of blocking is True, not False"),
        ("def execute_trace(mesh_device, trace_id, *, blocking): ...", "blocking has a default on one side only"),
        ("def wait_for_event(cq_id=None, *, event): ...", "has no parameter event"),
        ("def matmul(input_tensor_a, input_tensor_b, transpose_a=False): ...", "transpose_a at place 2"),
        ("class FabricConfig(enum.Enum):\n    FABRIC_1D = 1", "FABRIC_1D is 2, not 1"),
        ("class FabricConfig(enum.Enum):\n    FABRIC_3D = 9", "FABRIC_3D is None, not 9"),
        ("class MeshDevice:\n    def num_devices(self): ...", "MeshDevice.num_devices is not in the wheel"),
        ("class Mesh: ...", "is not a class of the wheel"),
        ("bfloat16: Layout", "is a DataType, not a Layout"),
    ],
)
def test_a_wrong_stub_is_found(definition: str, fault: str) -> None:
    (found,) = faults_of("ttnn", ast.parse(definition).body, ttnn, vars(ttnn))
    assert fault in found


@pytest.mark.parametrize(
    ("call", "fault"),
    [
        ("ttnn.open_mesh_device(shape, l1_size=3)", "has no parameter l1_size"),
        ("ttnn.execute_trace(device)", "also needs trace_id"),
        ("ttnn.begin_trace_capture(device, 0)", "takes 1 arguments by place, not 2"),
        ("ttnn.matmul(a)", "also needs input_tensor_b"),
    ],
)
def test_a_wrong_call_is_found(tmp_path: Path, call: str, fault: str) -> None:
    (tmp_path / "wrong.py").write_text(f"import ttnn\n{call}\n")
    called = [(name, node) for name, node in chains(tmp_path / "wrong.py") if node is not None]
    ((name, node),) = called
    found = call_fault(node, getattr(ttnn, name.split(".")[1]))
    assert found is not None
    assert fault in found


def test_nanobinds_signatures_are_read_with_their_defaults() -> None:
    node = ast.parse("def from_device(tensor, blocking=True, *, queue_id=None): ...").body[0]
    assert isinstance(node, ast.FunctionDef)
    assert list(signature_faults("from_device", of_definition(node, {}), ttnn.from_device)) == []


# -- ours, with the real ttnn and no chip


def test_ours_imports_without_torch() -> None:
    assert importlib.util.find_spec("torch") is None
    for module in ("mesh", "discovery", "signals", "reference_weights"):
        importlib.import_module(f"stepshape.adapters.ttnn.{module}")


@pytest.fixture
def no_chips() -> None:
    if Path("/dev/tenstorrent").exists():
        pytest.skip("this machine has Tenstorrent chips")


@pytest.mark.usefixtures("no_chips")
def test_a_machine_without_chips_is_told_in_one_line() -> None:
    from stepshape.adapters.ttnn.discovery import DiscoveryError, look_at_machine
    from stepshape.adapters.ttnn.mesh import MeshOpenError, MeshSettings, open_mesh

    with pytest.raises(MeshOpenError, match=r"^ttnn finds no Tenstorrent machine \(No chips detected in"):
        open_mesh(MeshSettings(shape=(1, 1)))
    with pytest.raises(DiscoveryError, match=r"^ttnn finds no Tenstorrent chips \(No chips detected in the cluster\);"):
        look_at_machine()


def test_a_queues_number_is_taken_as_an_int_and_a_shape_as_its_sides() -> None:
    host = ttnn.Tensor([1, 2, 3, 4], [1, 4], ttnn.uint32, ttnn.ROW_MAJOR_LAYOUT)
    assert host.cpu(blocking=False, cq_id=1).to_list() == [[1, 2, 3, 4]]
    assert tuple(ttnn.MeshShape(8, 4)) == (8, 4)
    assert ttnn.MeshShape((8, 4))[1] == 4
