"""What the environment says about the emulated card."""

from __future__ import annotations

import pytest

from stepshape.adapters.emulator.spyre.switches import SwitchError, Switches, read_switches


def test_unset_and_empty_mean_one_card_that_rounds_and_poisons() -> None:
    assert read_switches({}) == read_switches({"STEPSHAPE_SPYRE_FILL": " "}) == Switches(1, True, 0xFF, True)


@pytest.mark.parametrize(
    ("name", "value", "switches"),
    [
        ("STEPSHAPE_SPYRE_CARDS", "4", Switches(cards=4)),
        ("STEPSHAPE_SPYRE_ROUNDING", "off", Switches(rounding=False)),
        ("STEPSHAPE_SPYRE_FILL", "0x7f", Switches(fill=127)),
        ("STEPSHAPE_SPYRE_FILL", "0", Switches(fill=0)),
        ("STEPSHAPE_SPYRE_FILL", "none", Switches(fill=None)),
        ("OMP_NUM_THREADS", "2", Switches(pin_thread=False)),
    ],
)
def test_each_switch(name: str, value: str, switches: Switches) -> None:
    assert read_switches({name: value}) == switches


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("STEPSHAPE_SPYRE_CARDS", "0", "is no number of cards; use 1 to 64"),
        ("STEPSHAPE_SPYRE_CARDS", "two", "is no number of cards; use 1 to 64"),
        ("STEPSHAPE_SPYRE_ROUNDING", "maybe", "is not understood; use on or off"),
        ("STEPSHAPE_SPYRE_FILL", "300", "is no byte; use 0 to 255"),
        ("STEPSHAPE_SPYRE_FILL", "ff", "is no byte; use 0 to 255"),
    ],
)
def test_a_wrong_value_is_said(name: str, value: str, words: str) -> None:
    with pytest.raises(SwitchError, match=f"{name}='{value}' {words}"):
        read_switches({name: value})
