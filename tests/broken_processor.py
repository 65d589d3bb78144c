"""A user's logits processor with a bug in it: a real plugin of vLLM's, that raises when a request asks for it."""

from __future__ import annotations

from typing import Any

import torch
from vllm.v1.sample.logits_processor import LogitsProcessor
from vllm.v1.sample.logits_processor.interface import BatchUpdate


class RaisesOnThirdToken(LogitsProcessor):
    def __init__(self, vllm_config: Any, device: torch.device, is_pin_memory: bool) -> None:
        self.outputs: dict[int, list[int]] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        for index, params, _, outputs in batch_update.added if batch_update is not None else ():
            if (params.extra_args or {}).get("break"):
                self.outputs[index] = outputs

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        if any(len(outputs) == 2 for outputs in self.outputs.values()):
            raise RuntimeError("the third token is one too many")
        return logits
