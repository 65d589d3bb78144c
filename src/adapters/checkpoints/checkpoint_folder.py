"""A checkpoint folder that is either whole or not there.

It is written beside its place and renamed into it. A stamp names the source and the size of every file: a folder whose
stamp holds is complete and need not be made again.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from .errors import CheckpointError

STAMP = "stepshape-conversion.json"


def is_complete(folder: Path, source: str) -> bool:
    """Whether ``folder`` was made from ``source`` and every file of it still has its size."""
    try:
        stamp = json.loads((folder / STAMP).read_text(encoding="utf-8"))
        return bool(stamp["source"] == source) and stamp["files"] == _sizes(folder)
    except (OSError, ValueError, KeyError, TypeError):
        return False


def check_place(folder: Path) -> None:
    """Raise CheckpointError where ``folder`` cannot become a checkpoint without losing what the user has there."""
    if folder.is_dir():
        if any(folder.iterdir()) and not (folder / STAMP).exists():
            raise CheckpointError(f"{folder} holds files that are not ours; name a new folder or an empty one.")
    elif folder.exists() or folder.is_symlink():
        raise CheckpointError(f"{folder} is a file; name a folder.")


def write_whole(folder: Path, source: str, write: Callable[[Path], None]) -> None:
    """Have ``write`` fill a folder beside ``folder``, stamp it, and put it in place.

    A broken conversion of ours that stands there is replaced. Raises what ``write`` raises, with nothing left behind,
    and CheckpointError as `check_place` does or where the disk refuses.
    """
    check_place(folder)
    # The real place, so that the rename stays on one disk where the name is a link to a folder on another.
    place = folder.resolve()
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{place.name}.", suffix=".tmp", dir=place.parent))
    except OSError as cause:
        raise CheckpointError(
            f"{folder} cannot be made ({cause.strerror}); name a folder that you may write."
        ) from cause
    try:
        write(beside)
        # mkdtemp and safetensors write for the owner alone; a model server may run as another user.
        beside.chmod(0o755)
        for path in beside.iterdir():
            path.chmod(0o644)
        stamp = {"source": source, "files": _sizes(beside)}
        (beside / STAMP).write_text(json.dumps(stamp, indent=2) + "\n", encoding="utf-8")
        if place.exists():
            check_place(place)
            shutil.rmtree(place)
        beside.rename(place)
    except OSError as cause:
        why = cause.strerror or str(cause)
        raise CheckpointError(f"{folder} cannot be written ({why}); free what it names or choose another.") from cause
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _sizes(folder: Path) -> dict[str, int]:
    """Return the bytes of each file that the stamp speaks for."""
    return {path.name: path.stat().st_size for path in sorted(folder.iterdir()) if path.name != STAMP}
