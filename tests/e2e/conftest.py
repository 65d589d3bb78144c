"""The servers that tests share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from ..checkpoints import tiny_llama
from ..server import ServerUnderTest, serving


@pytest.fixture(scope="session")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_llama(tmp_path_factory.mktemp("llama"))


@pytest.fixture(scope="session")
def served(checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerUnderTest]:
    """Four lanes of eight rows, async, sampling on the device where it can. No test may stop it."""
    with serving(checkpoint, tmp_path_factory.mktemp("served") / "server.log") as server:
        yield server
