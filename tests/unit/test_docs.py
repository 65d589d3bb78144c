"""The examples of the docs run as they stand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).resolve().parents[2] / "docs"
BLOCKS = [
    pytest.param(block, id=f"{page.name}-{i}")
    for page in sorted(DOCS.glob("*.md"))
    for i, block in enumerate(re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL))
]


@pytest.mark.parametrize("block", BLOCKS)
def test_a_block_of_the_docs_runs(block: str) -> None:
    exec(compile(block, "docs", "exec"), {})  # the asserts are the block's own


def test_the_core_page_has_its_example() -> None:
    assert any(str(block.id).startswith("core.md") for block in BLOCKS)
