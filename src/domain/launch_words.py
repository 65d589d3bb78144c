"""What a ``vllm serve`` command line says of the few things that vLLM itself would answer badly.

vLLM looks for the checkpoint, and divides its heads by the tensor-parallel size, before it asks a platform about
anything: the user then reads a traceback about a hub that was never meant, or about heads. These words are read early,
from the command line alone, so that the platform's own sentence comes first.
"""

from __future__ import annotations

from collections.abc import Sequence

import attrs

_SIZES = {
    "--tensor-parallel-size": "tensor_parallel_size",
    "-tp": "tensor_parallel_size",
    "--pipeline-parallel-size": "pipeline_parallel_size",
    "-pp": "pipeline_parallel_size",
}


@attrs.frozen(kw_only=True)
class LaunchWords:
    model: str | None = None
    """as typed; None where the command line names none in a form that is certain"""
    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1


def launch_words(arguments: Sequence[str]) -> LaunchWords:
    """``arguments``: ``sys.argv`` without the program. Anything but ``serve ...`` says nothing."""
    if not arguments or arguments[0] != "serve":
        return LaunchWords()
    sizes: dict[str, int] = {}
    model: str | None = None
    words = list(arguments[1:])
    if words and not words[0].startswith("-"):
        model = words[0]
    for i, word in enumerate(words):
        name, equals, value = word.partition("=")
        name = name.replace("_", "-")
        if not equals:
            value = words[i + 1] if i + 1 < len(words) else ""
        if name == "--model" and value:
            model = value
        elif name in _SIZES and value.isdecimal():
            sizes[_SIZES[name]] = int(value)
    return LaunchWords(model=model, **sizes)


def missing_checkpoint(model: str, *, is_folder: bool, in_cache: bool, offline: bool) -> str | None:
    """A sentence if ``model`` cannot be had: a path with nothing there, or a hub name that is not in the local cache
    while the hub may not be asked. None: it is there, or the hub will be asked."""
    if is_folder or in_cache:
        return None
    looks_like_path = model.startswith(("/", ".", "~")) or model.count("/") > 1
    if looks_like_path:
        return f"there is no checkpoint folder {model!r}; give the path of a folder that holds a config.json"
    if offline:
        return (
            f"the model {model!r} is neither a folder here nor in the local Hugging Face cache, and HF_HUB_OFFLINE "
            "forbids asking the hub; give the path of a checkpoint folder, or download the model first"
        )
    return None
