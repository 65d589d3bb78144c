"""From a served load's report to ladders on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stepshape.domain.attention_plan import FlatDecode, OneSequence
from stepshape.domain.bucket_counts import BucketCounts
from stepshape.plugins.command_line.main import main


def served(folder: Path) -> Path:
    """The report of 10 prompts of 20 tokens, then 90 steps of three decodes at 100 tokens."""
    counts = BucketCounts(64)
    for _ in range(10):
        counts.add([20], [0], 512, [OneSequence(512, 1)], 3)
    for _ in range(90):
        counts.add([1, 1, 1], [100, 100, 100], 4, [FlatDecode(4, 16)], 3)
    report = folder / "report.json"
    report.write_text(json.dumps(counts.summary()))
    return report


def test_a_report_becomes_the_best_ladders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["spyre", "ladders", str(served(tmp_path)), "--body", "3", "--max-num-batched-tokens", "256"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "--compilation-config '{\"compile_sizes\": [3, 20, 256]}'  # 1.000 computed for 1 needed",
        "STEPSHAPE_SPYRE_ENTRY_BUCKETS=7  # 1.000 computed for 1 needed",
    ]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "is no report of a served load"),
        ("{}", "is no report of a served load (KeyError"),
        ('{"measured": {"body_rows": {}, "decode_entries": {}}}', "holds no step; serve something first"),
        ('{"measured": {"body_rows": {"900": 1}, "decode_entries": {}}}', "a length of 900 was measured above the top"),
    ],
)
def test_what_cannot_be_planned_from_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], text: str, said: str
) -> None:
    report = tmp_path / "report.json"
    report.write_text(text)
    assert main(["spyre", "ladders", str(report)]) == 1
    assert said in capsys.readouterr().err
