"""The examples of the core's page run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGE = Path(__file__).resolve().parents[2] / "docs" / "core.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_docs_runs(block: str) -> None:
    exec(compile(block, "docs", "exec"), {})  # the asserts are the block's own


def test_the_page_has_its_example() -> None:
    assert len(BLOCKS) == 1
