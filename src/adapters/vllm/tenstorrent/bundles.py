"""Reading ``EXTRA_MODELS_DIR`` (tenstorrent contract 2.2)."""

from __future__ import annotations

import sys
from pathlib import Path

from vllm.logger import init_logger

from ....domain.bundles import METADATA, Bundle, SkippedBundle, parse_bundle

log = init_logger(f"vllm.{__name__}")


def read_bundles(folder: Path | None) -> tuple[Bundle | SkippedBundle, ...]:
    """Read each sub-folder of ``folder`` that holds a metadata file, by name. A folder that is not there is warned
    about and ignored; None: no bundles. A good bundle's folder is appended to ``sys.path``, so that installed
    packages win."""
    if folder is None:
        return ()
    if not folder.is_dir():
        log.warning("EXTRA_MODELS_DIR=%s is no folder and is ignored; name a folder of model bundles", folder)
        return ()
    found: list[Bundle | SkippedBundle] = []
    for entry in sorted(folder.iterdir()):
        metadata = entry / METADATA
        if not entry.is_dir() or not metadata.exists():
            continue
        try:
            text = metadata.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            found.append(SkippedBundle(entry.name, f"{METADATA} cannot be read ({error})"))
            continue
        bundle = parse_bundle(entry.name, text)
        if isinstance(bundle, Bundle) and str(entry) not in sys.path:
            sys.path.append(str(entry))
        found.append(bundle)
    return tuple(found)
