from __future__ import annotations

import pytest

from stepshape.domain.device_groups import (
    DeviceGroup,
    DeviceGroupError,
    bind_rank,
    check_groups,
    group_order,
    piece_shape,
)

QUADS = (DeviceGroup((0, 1, 2, 3), (1, 4)), DeviceGroup((4, 5, 6, 7), (1, 4)))


@pytest.mark.parametrize(
    ("mesh", "count", "piece"),
    [
        ((8, 4), 4, (8, 1)),
        ((1, 8), 2, (1, 4)),
        ((4, 8), 4, (4, 2)),
        ((8, 4), 8, (1, 4)),
        ((2, 4), 1, (2, 4)),
    ],
)
def test_pieces_are_whole_columns_or_else_whole_rows(
    mesh: tuple[int, int], count: int, piece: tuple[int, int]
) -> None:
    assert piece_shape(mesh, count) == piece


@pytest.mark.parametrize("count", [3, 0, -1])
def test_a_mesh_that_does_not_divide_is_refused(count: int) -> None:
    with pytest.raises(DeviceGroupError, match=f"has no {count} equal pieces"):
        piece_shape((8, 4), count)


def test_the_quarters_of_a_wormhole_galaxy_follow_its_ring() -> None:
    assert group_order("GALAXY", (4, 8), 4) == (0, 2, 3, 1)
    assert group_order("BLACKHOLE_GALAXY", (4, 8), 4) == (0, 1, 2, 3)
    assert group_order("GALAXY", (8, 4), 4) == (0, 1, 2, 3)
    assert group_order("GALAXY", (4, 8), 2) == (0, 1)


@pytest.mark.parametrize(
    ("groups", "count", "words"),
    [
        ((), 2, "2 groups of chips were asked for and 0 found"),
        (QUADS, 4, "4 groups of chips were asked for and 2 found"),
        ((QUADS[0], DeviceGroup((), (1, 0))), 2, "group 1 has no chips"),
        ((QUADS[0], DeviceGroup((3, 4), (1, 2))), 2, "chip 3 is in two groups"),
    ],
)
def test_groups_that_cannot_be_are_refused(groups: tuple[DeviceGroup, ...], count: int, words: str) -> None:
    with pytest.raises(DeviceGroupError, match=words):
        check_groups(groups, count)


def test_a_rank_gets_its_group_and_an_equal_assignment_stands() -> None:
    check_groups(QUADS, 2)
    assert bind_rank(QUADS, 1, ()) == "4,5,6,7"
    assert bind_rank(QUADS, 0, ("0,1,2,3",)) == "0,1,2,3"
    assert bind_rank(QUADS, 0, ("0", "1", "2", "3")) == "0,1,2,3"
    assert bind_rank((), None, ("2", "3")) == "2,3"
    assert bind_rank((), None, ()) is None


@pytest.mark.parametrize(
    ("rank", "assigned", "words"),
    [
        (0, ("0",), "--device-ids 0 is not the group of rank 0, which has the chips 0,1,2,3"),
        (None, (), "rank None has no group among the 2 discovered"),
        (2, (), "rank 2 has no group among the 2 discovered"),
    ],
)
def test_a_conflict_is_an_error_before_a_chip_is_opened(
    rank: int | None, assigned: tuple[str, ...], words: str
) -> None:
    with pytest.raises(DeviceGroupError, match=words):
        bind_rank(QUADS, rank, assigned)
