"""The output of an asynchronous step whose sampling runs on the host.

vLLM's own class waits on CUDA streams. Here tokens are host tensors by the time the step returns; only the lists that
the engine wants are made late, on the output thread.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor
from vllm.v1.outputs import AsyncModelRunnerOutput, KVConnectorOutput, ModelRunnerOutput


class HostEvent:
    """Has always happened."""

    def record(self) -> None:
        """Nothing to mark."""

    def synchronize(self) -> None:
        """Nothing to wait for."""


class HostOutput(AsyncModelRunnerOutput):
    """``sampled`` int [requests, 1]; ``discarded``: rows whose token is none, being in the middle of their prompt."""

    def __init__(self, output: ModelRunnerOutput, sampled: Tensor, logprobs: Any, discarded: list[int]) -> None:
        self._output = output
        self._sampled = sampled
        self._logprobs = logprobs
        self._discarded = discarded

    def get_output(self) -> ModelRunnerOutput:
        tokens = self._sampled.tolist()
        for row in self._discarded:
            tokens[row].clear()
        self._output.sampled_token_ids = tokens
        self._output.logprobs = None if self._logprobs is None else self._logprobs.tolists()
        return self._output

    def get_kv_connector_output(self) -> KVConnectorOutput | None:
        return self._output.kv_connector_output
