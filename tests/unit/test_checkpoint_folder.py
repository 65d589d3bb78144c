"""A checkpoint folder is whole or not there, and nothing of the user's is lost."""

from __future__ import annotations

from pathlib import Path

import pytest

from stepshape.adapters.checkpoints.checkpoint_folder import STAMP, is_complete, write_whole
from stepshape.adapters.checkpoints.errors import CheckpointError


def write_two(folder: Path) -> None:
    (folder / "config.json").write_text("{}")
    (folder / "model.safetensors").write_bytes(b"weights")


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_a_written_folder_is_complete_for_its_source_alone(tmp_path: Path) -> None:
    folder = tmp_path / "deep" / "model"
    write_whole(folder, "one", write_two)
    assert names(folder) == ["config.json", "model.safetensors", STAMP]
    assert is_complete(folder, "one")
    assert not is_complete(folder, "two")


def test_a_file_cut_short_lost_or_added_makes_it_incomplete(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    for spoil in (
        lambda: (folder / "model.safetensors").write_bytes(b"wei"),
        lambda: (folder / "config.json").unlink(),
        lambda: (folder / "other").write_text(""),
        lambda: (folder / STAMP).write_text("{"),
        lambda: (folder / STAMP).write_text("[]"),
    ):
        write_whole(folder, "one", write_two)
        assert is_complete(folder, "one")
        spoil()
        assert not is_complete(folder, "one")


def test_a_broken_write_leaves_nothing_behind_and_what_stood_stands(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    write_whole(folder, "one", write_two)

    def write_and_fail(beside: Path) -> None:
        (beside / "config.json").write_text("half")
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_whole(folder, "two", write_and_fail)
    assert is_complete(folder, "one")
    assert names(tmp_path) == ["model"]


def test_a_full_disk_is_told_in_a_sentence(tmp_path: Path) -> None:
    def write_to_a_full_disk(beside: Path) -> None:
        raise OSError(28, "No space left on device")

    with pytest.raises(CheckpointError, match=r"cannot be written \(No space left on device\)"):
        write_whole(tmp_path / "model", "one", write_to_a_full_disk)
    assert names(tmp_path) == []


def test_an_empty_folder_is_filled_and_one_of_the_user_is_refused(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    write_whole(tmp_path / "empty", "one", write_two)
    assert is_complete(tmp_path / "empty", "one")
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years of work")
    with pytest.raises(CheckpointError, match="holds files that are not ours"):
        write_whole(theirs, "one", write_two)
    assert names(theirs) == ["thesis.txt"]
    with pytest.raises(CheckpointError, match=r"thesis\.txt is a file; name a folder"):
        write_whole(theirs / "thesis.txt", "one", write_two)
    with pytest.raises(CheckpointError, match="cannot be made"):
        write_whole(theirs / "thesis.txt" / "below", "one", write_two)


def test_a_linked_folder_keeps_its_link(tmp_path: Path) -> None:
    (tmp_path / "big_disk").mkdir()
    link = tmp_path / "model"
    link.symlink_to(tmp_path / "big_disk")
    write_whole(link, "one", write_two)
    assert link.is_symlink()
    assert is_complete(tmp_path / "big_disk", "one")
