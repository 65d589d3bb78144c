"""The table of limits: whole, told apart, printed; the errors it makes."""

from __future__ import annotations

import pickle
from itertools import pairwise

import pytest

from stepshape.domain.spyre_limits import Limit, LimitBroken, Run, limit_named
from stepshape.plugins.command_line.main import main
from stepshape.plugins.command_line.spyre_limits import lines


def test_every_check_of_the_contract_has_a_limit() -> None:
    assert {limit.text.check for limit in Limit} == set(range(1, 15))
    assert all(before.text.check <= after.text.check for before, after in pairwise(Limit))


def test_names_are_distinct_and_every_entry_is_whole() -> None:
    assert len({limit.text.name for limit in Limit}) == len(Limit)
    for limit in Limit:
        text = limit.text
        assert text.cause and text.mend and (text.probe.arguments or text.probe.function)
        assert text.workaround != ""
        assert text.probe.function.startswith("lambda")
        assert limit_named(text.name) is limit


def test_only_collectives_leave_their_probe_to_the_caller() -> None:
    without = [limit for limit in Limit if limit.text.probe.function == "lambda *all: None"]
    assert without == [limit for limit in Limit if limit.text.probe.run is Run.COLLECTIVE]


def test_an_error_says_name_cause_detail_and_mend() -> None:
    said = str(LimitBroken(Limit.FP32_MATMUL, "mm(a, b)"))
    assert said == "fp32-matmul: a matmul of float32 (mm(a, b)); use float16 operands"


def test_an_error_crosses_a_process_boundary() -> None:
    again = pickle.loads(pickle.dumps(LimitBroken(Limit.DTYPE, "x")))
    assert isinstance(again, LimitBroken) and again.limit is Limit.DTYPE and again.detail == "x"


def test_the_command_prints_every_limit_with_its_probe_and_workaround(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spyre", "limits"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    for limit in Limit:
        text = limit.text
        for words in (f"{text.check} {text.name}", text.cause, text.mend, text.probe.function, text.probe.arguments):
            assert " ".join(words.split()) in printed
        assert (text.workaround or "none: we do not do it") in printed


@pytest.mark.parametrize("width", [60, 100, 200])
def test_no_line_is_wider_than_the_terminal(width: int) -> None:
    assert max(map(len, lines(width))) <= max(width, 100)


def test_without_a_card_nothing_is_probed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("STEPSHAPE_SPYRE_DEVICE", raising=False)
    monkeypatch.delenv("STEPSHAPE_TT_DEVICE", raising=False)
    assert main(["spyre", "limits", "--probe"]) == 1
    assert "STEPSHAPE_SPYRE_DEVICE=emulated" in capsys.readouterr().out
