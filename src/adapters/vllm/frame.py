"""A submitted step on its way back: read on any thread, once; applied on the engine's."""
from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import structlog
import torch
from vllm import SamplingParams
from vllm.v1.outputs import AsyncModelRunnerOutput, LogprobsLists, LogprobsTensors

from ...ports.generator import HostResult, Readback
from ...ports.step import StepPlan
from .host_sampling import GrammarMask, HostBatch, HostRow, HostTokens
from .outputs import Failure, PlannedRunnerOutput

log = structlog.get_logger(__name__)


class Frame(AsyncModelRunnerOutput):
    """One step between submission and application.

    ``device_rows`` are where the emitting rows' tokens stand in the device's answer (B rows in a decode, N in a
    prefill); ``rows``, ``positions`` and ``epochs`` say where they belong on the host. All are int64 arrays over the
    emitting rows, in plan order.
    """

    def __init__(
        self,
        *,
        plan: StepPlan[SamplingParams],
        readback: Readback[torch.Tensor] | None,
        error: str | None,
        index: dict[str, int],
        emitting: Sequence[int] | None,
        device_rows: npt.NDArray[np.int64],
        rows: npt.NDArray[np.int64],
        positions: npt.NDArray[np.int64],
        epochs: npt.NDArray[np.int64],
        host_rows: Sequence[HostRow],
        host_batch: HostBatch,
    ) -> None:
        self.plan = plan
        self.device_rows = device_rows
        self.rows = rows
        self.positions = positions
        self.epochs = epochs
        self.tokens: npt.NDArray[np.int32] | None = None
        """int32 over the emitting rows, once read; None where the step failed"""
        self._readback = readback
        self._error = error
        self._index = index
        self._emitting = emitting
        self._host_rows = host_rows
        self._host_batch = host_batch
        self._grammar: GrammarMask | None = None
        self._lock = threading.Lock()
        self._output: PlannedRunnerOutput | None = None

    def sample_with(self, grammar: GrammarMask | None) -> None:
        self._grammar = grammar

    @property
    def is_read(self) -> bool:
        return self._output is not None

    @property
    def failed(self) -> bool:
        return self._output is not None and self.tokens is None

    def get_output(self) -> PlannedRunnerOutput:
        """Wait for the device and choose the host's tokens. The engine's thread and an output thread may both ask:
        the first does the work, the other gets the same answer."""
        if self._output is None:
            with self._lock:
                if self._output is None:
                    self._output = self._read()
        return self._output

    def get_kv_connector_output(self) -> Any:
        return None

    def _read(self) -> PlannedRunnerOutput:
        if self._readback is None:
            return self._failure(self._error or "the step was not submitted")
        try:
            result = self._readback.read()
        except Exception as error:
            return self._failure(str(error))
        finally:
            self._readback = None
        return self._choose(result)

    def _choose(self, result: HostResult[torch.Tensor]) -> PlannedRunnerOutput:
        plan = self.plan
        path = plan.path
        failed: dict[int, Failure] = {}
        logprobs: LogprobsTensors | None = None
        if path.all_host:
            chosen = np.zeros(path.num_rows, np.int32)
        else:
            assert result.tokens is not None
            chosen = result.tokens.numpy()[self.device_rows]
        if path.host:
            assert result.logits is not None
            host = self._sample(result.logits)
            if path.all_host:
                chosen = np.asarray(host.tokens, np.int32)
            else:
                chosen[list(path.host)] = host.tokens
            failed = {path.host[i]: why for i, why in host.failed.items()}
            logprobs = host.logprobs
        self.tokens = chosen
        sampled: list[list[int]]
        if self._emitting is None:
            sampled = [[t] for t in chosen.tolist()]
        else:
            sampled = [[] for _ in plan.request_ids]
            for i, token in zip(self._emitting, chosen.tolist(), strict=True):
                sampled[i] = [token]
        output = PlannedRunnerOutput(
            req_ids=list(plan.request_ids) if self._emitting is not None else plan.request_ids,  # type: ignore[arg-type]
            req_id_to_index=self._index,
            sampled_token_ids=sampled,
        )
        if failed or logprobs is not None:
            at = self._emitting if self._emitting is not None else range(path.num_rows)
            if logprobs is not None:
                output.logprobs = _spread(logprobs, [at[i] for i in path.host], len(plan.request_ids))
            for i, why in failed.items():
                sampled[at[i]] = []
                output.failed[plan.request_ids[at[i]]] = why
                log.error("request_failed", request_id=plan.request_ids[at[i]], why=why.why)
        return output

    def _sample(self, logits: torch.Tensor) -> HostTokens:
        """A sampler that raises (a user's logits processor, say) ends the rows it was asked for, not the engine."""
        try:
            return self._host_batch.sample(self._host_rows, logits, self._grammar)
        except Exception as error:
            log.exception("host_sampling_failed", requests=[row.request_id for row in self._host_rows])
            self._host_batch.reset()
            why = Failure(f"sampling raised {type(error).__name__}: {error}")
            return HostTokens(
                tokens=[0] * len(self._host_rows),
                logprobs=None,
                failed=dict.fromkeys(range(len(self._host_rows)), why),
            )

    def _failure(self, why: str) -> PlannedRunnerOutput:
        plan = self.plan
        log.error("step_failed", step=plan.step, phase=plan.phase.value, why=why, requests=list(plan.request_ids))
        return PlannedRunnerOutput(
            req_ids=list(plan.request_ids),
            req_id_to_index=self._index,
            sampled_token_ids=[[] for _ in plan.request_ids],
            failed=dict.fromkeys(plan.request_ids, Failure(f"the device failed this request's step: {why}")),
        )


def _spread(logprobs: LogprobsTensors, at: Sequence[int], num_requests: int) -> LogprobsLists:
    """The host rows' logprobs at their requests' indices; vLLM slices by request."""
    if len(at) == num_requests:
        whole: LogprobsLists = logprobs.tolists()
        return whole
    ids = logprobs.logprob_token_ids.numpy()
    values = logprobs.logprobs.numpy()
    ranks = logprobs.selected_token_ranks.numpy()
    all_ids = np.zeros((num_requests, ids.shape[1]), ids.dtype)
    all_values = np.zeros((num_requests, values.shape[1]), values.dtype)
    all_ranks = np.zeros(num_requests, ranks.dtype)
    index = list(at)
    all_ids[index] = ids
    all_values[index] = values
    all_ranks[index] = ranks
    return LogprobsLists(all_ids, all_values, all_ranks, None)


