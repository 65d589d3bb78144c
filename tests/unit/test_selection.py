from __future__ import annotations

import pytest

from stepshape.domain.selection import Device, select_mesh


def test_an_ordinary_environment_selects_nothing() -> None:
    assert select_mesh({}, real_mesh=False).device is None
    assert select_mesh({"STEPSHAPE_TT_DEVICE": " ", "MESH_DEVICE": "TG"}, real_mesh=False).device is None


def test_the_variable_alone_selects_the_emulator_even_beside_a_real_mesh() -> None:
    for real in (False, True):
        chosen = select_mesh({"STEPSHAPE_TT_DEVICE": "emulated"}, real_mesh=real)
        assert (chosen.device, chosen.problem) == (Device.EMULATED, None)


def test_a_real_mesh_is_used_where_there_is_one() -> None:
    assert select_mesh({}, real_mesh=True).device is Device.REAL


@pytest.mark.parametrize(
    ("environment", "sentence"),
    [
        (
            {"STEPSHAPE_TT_DEVICE": "yes"},
            "STEPSHAPE_TT_DEVICE='yes' is no device; use emulated, or leave it unset for a real mesh",
        ),
        (
            {"STEPSHAPE_TT_DEVICE": "emulated", "STEPSHAPE_SPYRE_DEVICE": "emulated"},
            "STEPSHAPE_TT_DEVICE=emulated and STEPSHAPE_SPYRE_DEVICE=emulated select two devices for one process; "
            "leave one of them unset",
        ),
    ],
)
def test_a_wrong_selection_still_selects_so_that_the_start_can_say_why(
    environment: dict[str, str], sentence: str
) -> None:
    chosen = select_mesh(environment, real_mesh=False)
    assert chosen.device is not None
    assert chosen.problem == sentence
