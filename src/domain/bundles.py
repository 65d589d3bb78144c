"""Model bundles: folders of ``EXTRA_MODELS_DIR`` that bring a model class of their own (tenstorrent contract 2.2).

The reading of files is an adapter's; here is what their text means and which of several bundles serves an architecture.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping

import attrs

from .model_table import prefixed

METADATA = "vllm_metadata.json"
"""The file that makes a folder a bundle."""

_TARGET = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*", re.ASCII)


@attrs.frozen
class Bundle:
    folder: str
    """the folder's name, as people see it"""
    architecture: str
    """registered name, with the prefix"""
    target: str
    """``module:Class``"""


@attrs.frozen
class SkippedBundle:
    folder: str
    reason: str
    """follows "skipped: " in the warning"""


def parse_bundle(folder: str, metadata: str) -> Bundle | SkippedBundle:
    """Read the text of a bundle's metadata file. Never raises on what it holds; further fields are ignored."""
    try:
        content = json.loads(metadata)
    except ValueError as error:
        return SkippedBundle(folder, f"{METADATA} is not JSON ({error})")
    except RecursionError:
        return SkippedBundle(folder, f"{METADATA} is not JSON that can be read (nested too deep)")
    if not isinstance(content, dict):
        return SkippedBundle(folder, f"{METADATA} holds a {type(content).__name__}, not an object")
    for field in ("arch", "main_class"):
        if field not in content:
            return SkippedBundle(folder, f"{METADATA} has no {field!r}")
        if not isinstance(content[field], str) or not content[field].strip():
            return SkippedBundle(folder, f"{field!r} of {METADATA} is {content[field]!r}, not a name")
    target = content["main_class"].strip()
    if _TARGET.fullmatch(target) is None:
        return SkippedBundle(folder, f"'main_class' of {METADATA} is {target!r}, not of the form module:Class")
    return Bundle(folder, prefixed(content["arch"].strip()), target)


@attrs.frozen
class Registrations:
    targets: Mapping[str, str]
    """registered architecture to ``module:Class``"""
    skipped: tuple[SkippedBundle, ...]


def choose_registrations(found: Iterable[Bundle | SkippedBundle], builtin: Mapping[str, str]) -> Registrations:
    """Decide who serves each architecture. A bundle goes before a built-in model of the same name; of two bundles the
    first by folder name serves, and the other is skipped with a reason, so that a duplicate never hides a special
    build (field case 36)."""
    targets: dict[str, str] = {}
    holders: dict[str, str] = {}
    skipped: list[SkippedBundle] = []
    for item in sorted(found, key=lambda entry: entry.folder):
        if isinstance(item, SkippedBundle):
            skipped.append(item)
        elif item.architecture in targets:
            holder = holders[item.architecture]
            skipped.append(SkippedBundle(item.folder, f"{item.architecture} is already served by bundle {holder!r}"))
        else:
            targets[item.architecture] = item.target
            holders[item.architecture] = item.folder
    return Registrations({**builtin, **targets}, tuple(skipped))
