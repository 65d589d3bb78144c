from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stepshape.domain.topology import (
    PRESETS,
    Topology,
    TopologyError,
    allowed_lanes,
    fold,
    parse_mesh,
    visible_devices,
)


@pytest.mark.parametrize(
    ("text", "shape"),
    [
        ("TG", (8, 4)),
        ("BH-Galaxy", (8, 4)),
        ("T3K", (1, 8)),
        ("P150x4", (1, 4)),
        ("N150", (1, 1)),
        ("(2,4)", (2, 4)),
        ("[4, 8]", (4, 8)),
        (" (1, 2) ", (1, 2)),
        (None, (1, 32)),
        ("", (1, 32)),
    ],
)
def test_presets_tuples_and_the_default(text: str | None, shape: tuple[int, int]) -> None:
    assert parse_mesh(text, available=32) == shape


@pytest.mark.parametrize(
    "text", ["tg", "N999", "(1)", "(0,4)", "(1,2,3)", "(1,True)", "(a,b)", "(", "8x4", "__import__"]
)
def test_what_is_no_mesh_is_refused_with_the_names_there_are(text: str) -> None:
    with pytest.raises(TopologyError) as caught:
        parse_mesh(text, available=32)
    assert str(caught.value) == (
        f"MESH_DEVICE={text!r} is no mesh; use one of {', '.join(PRESETS)}, or a tuple such as (1,4)"
    )


def test_a_mesh_larger_than_what_is_there_is_refused() -> None:
    with pytest.raises(TopologyError) as caught:
        parse_mesh("(8,8)", available=32)
    assert str(caught.value) == (
        "MESH_DEVICE=(8,8) wants an 8x8 mesh of 64 chips and 32 are there; name a mesh of at most 32 chips"
    )
    with pytest.raises(TopologyError, match=r"of 8 chips and 1 is there; name a mesh of at most 1 chip$"):
        parse_mesh("T3K", available=1)
    with pytest.raises(TopologyError, match=r"^no Tenstorrent chip is visible"):
        parse_mesh(None, available=0)


def test_visible_devices_count_and_are_checked() -> None:
    assert visible_devices(None, 32) == 32
    assert visible_devices("0,1, 5", 8) == 3
    for text, cause in (("0,x", "holds 'x'"), ("1,1", "names a chip twice"), ("0,8", "names chip 8 and there are 8")):
        with pytest.raises(TopologyError, match=cause):
            visible_devices(text, 8)


def test_data_parallel_becomes_lanes_of_max_num_seqs() -> None:
    topology = fold(
        mesh=(8, 4), data_parallel_size=4, max_num_seqs=8, declared_lanes=(1, 2, 4, 8), model="LlamaForCausalLM"
    )
    assert (topology.lanes, topology.rows_per_lane, topology.capacity, topology.devices_per_lane) == (4, 8, 32, 8)
    assert topology.describe() == (
        "8x4 mesh, 4 lanes of 8 rows (data_parallel_size=4 folded: LlamaForCausalLM runs its lanes in one engine)"
    )


def test_one_lane_says_so() -> None:
    topology = fold(mesh=(1, 1), data_parallel_size=1, max_num_seqs=1, declared_lanes=(), model="LlamaForCausalLM")
    assert topology.describe() == "1x1 mesh, 1 lane, 1 row (data_parallel_size=1)"


def test_a_count_that_is_no_lane_count_is_refused_with_those_that_are() -> None:
    with pytest.raises(TopologyError) as caught:
        fold(mesh=(8, 4), data_parallel_size=3, max_num_seqs=8, declared_lanes=(1, 2, 4, 8), model="LlamaForCausalLM")
    assert str(caught.value) == (
        "data_parallel_size=3 is not a lane count of LlamaForCausalLM on an 8x4 mesh (1, 2, 4); use one of those"
    )


def test_a_model_without_lanes_refuses_data_parallel() -> None:
    with pytest.raises(TopologyError) as caught:
        fold(mesh=(1, 8), data_parallel_size=2, max_num_seqs=8, declared_lanes=(), model="MistralForCausalLM")
    assert str(caught.value) == (
        "data_parallel_size=2 needs one engine a rank, and MistralForCausalLM declares no lanes that would replace "
        "them; ranks are not supported yet, use --data-parallel-size 1"
    )


@given(
    columns=st.integers(1, 16),
    declared=st.sets(st.integers(1, 16), min_size=1),
    lanes=st.integers(1, 16),
    rows=st.integers(1, 64),
)
def test_folding_is_idempotent(columns: int, declared: set[int], lanes: int, rows: int) -> None:
    mesh = (8, columns)

    def again(size: int, seqs: int, folded: Topology | None) -> Topology:
        return fold(
            mesh=mesh,
            data_parallel_size=size,
            max_num_seqs=seqs,
            declared_lanes=tuple(declared),
            model="M",
            folded=folded,
        )

    if lanes > 1 and lanes not in allowed_lanes(tuple(declared), mesh):
        with pytest.raises(TopologyError, match=f"data_parallel_size={lanes} is not a lane count"):
            again(lanes, rows, None)
        return
    once = again(lanes, rows, None)
    assert (once.lanes, once.capacity) == (lanes, lanes * rows)
    # The hook sees the folded values the second time.
    assert again(1, once.capacity, once) == once


def test_a_new_request_for_lanes_is_folded_afresh() -> None:
    first = fold(mesh=(8, 4), data_parallel_size=4, max_num_seqs=8, declared_lanes=(1, 2, 4), model="M")
    second = fold(mesh=(8, 4), data_parallel_size=2, max_num_seqs=8, declared_lanes=(1, 2, 4), model="M", folded=first)
    assert (second.lanes, second.rows_per_lane) == (2, 8)
    third = fold(mesh=(8, 4), data_parallel_size=1, max_num_seqs=8, declared_lanes=(1, 2, 4), model="M", folded=first)
    assert (third.lanes, third.rows_per_lane) == (1, 8)
