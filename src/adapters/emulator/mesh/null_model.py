"""A model that computes nothing, to measure the host by: the generator contract at the least possible cost.

Tokens are constant and logits zero. With no latency a step is over at once; with one (of the mesh it is opened
on) a step ends ``latency`` after the previous step's end or its own submission, whichever is later, as on a
device with a queue. No thread runs and nothing is checked: rules are the emulated model's business.
"""
from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NoReturn, TypeVar

import torch

from ....ports.step import Phase
from .latency import NO_LATENCY, LatencyModel

Model = TypeVar("Model", bound="NullPlainForCausalLM")
TOKEN = 1
"""what every row samples"""


class NullMeshError(ValueError):
    """The null mesh cannot be opened as asked."""


class NullEvent:
    """Passes when the clock reaches ``end``."""

    __slots__ = ("_clock", "_sleep", "end")

    def __init__(self, end: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> None:
        self.end, self._clock, self._sleep = end, clock, sleep

    def synchronize(self) -> None:
        left = self.end - self._clock()
        while left > 0:
            self._sleep(left)
            left = self.end - self._clock()

    def done(self) -> bool:
        return self._clock() >= self.end


class NullMesh:
    """Implements ``ports.mesh.Mesh`` with a clock in place of a device.

    ``busy_seconds`` sums the device's time in steps, ``began`` and ``ended`` are when the first step was submitted
    and when the last one is over, so that ``busy_seconds / (ended - began)`` is the device-busy fraction.
    """

    def __init__(
        self,
        shape: tuple[int, int],
        *,
        latency: LatencyModel = NO_LATENCY,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        if shape[0] < 1 or shape[1] < 1:
            raise NullMeshError(f"a {shape[0]}x{shape[1]} mesh has no chips; give rows and columns of at least 1")
        self._shape = shape
        self.latency = latency
        self._clock, self._sleep = clock, sleep
        self.busy_seconds = 0.0
        self.prefill_steps = 0
        self.decode_steps = 0
        self.began: float | None = None
        self.ended = 0.0
        self._passed = NullEvent(float("-inf"), clock, sleep)

    @property
    def shape(self) -> tuple[int, int]:
        return self._shape

    @property
    def num_devices(self) -> int:
        return self._shape[0] * self._shape[1]

    @property
    def handle(self) -> NullMesh:
        return self

    def synchronize(self, event: NullEvent) -> None:
        event.synchronize()

    def event_done(self, event: NullEvent) -> bool:
        return event.done()

    def close(self) -> None:
        """There is nothing to close."""

    def step(self, phase: Phase, *, rows: int, tokens: int) -> NullEvent:
        """Submit a step; returns the event of its end."""
        if phase is Phase.DECODE:
            self.decode_steps += 1
        else:
            self.prefill_steps += 1
        if self.latency is NO_LATENCY:
            return self._passed
        seconds = self.latency.seconds(phase, rows=rows, tokens=tokens)
        now = self._clock()
        if self.began is None:
            self.began = now
        self.ended = max(now, self.ended) + seconds
        self.busy_seconds += seconds
        return NullEvent(self.ended, self._clock, self._sleep)

    def restart_clock(self) -> None:
        """Forget what was counted so far (a warm-up, a ramp)."""
        self.busy_seconds, self.began = 0.0, None
        self.prefill_steps = self.decode_steps = 0


class NullOutput:
    """A step's output, on the device and, after its event, on the host."""

    __slots__ = ("event", "host")

    def __init__(self, event: NullEvent, host: torch.Tensor | tuple[torch.Tensor, torch.Tensor]) -> None:
        self.event, self.host = event, host


class NullPlainForCausalLM:
    """One lane; see ``EmulatedPlainForCausalLM`` for the contract. The mesh it is given is a :class:`NullMesh`."""

    model_capabilities: ClassVar[dict[str, Any]] = {
        "supports_sample_on_device": True,
        "supports_tokens_and_logits": True,
        "supports_async_decode": True,
        "supports_async_prefill": True,
        "supports_prefix_caching": True,
        "supports_chunked_prefill": True,
        "supports_device_penalties": False,
        "supports_device_seeds": True,
        "max_device_top_k": 32,
    }
    decode_input_update_contract: ClassVar[int] = 1

    def __init__(
        self,
        *,
        vllm_config: object = None,
        prefix: str = "",
        mesh: NullMesh | None = None,
        capacity: int = 0,
        vocab_size: int = 0,
    ) -> None:
        if mesh is None:
            raise TypeError(f"{type(self).__name__} runs on a null mesh; make it with initialize_vllm_model")
        self._mesh = mesh
        self._capacity, self._vocab_size = capacity, vocab_size
        self._tokens = torch.full((capacity,), TOKEN, dtype=torch.int32)
        self._token_rows = [self._tokens[:rows] for rows in range(capacity + 1)]
        self._logits: dict[int, torch.Tensor] = {}

    @classmethod
    def lane_counts_for(cls, mesh_shape: tuple[int, int]) -> tuple[int, ...]:
        return ()

    @classmethod
    def initialize_vllm_model(
        cls: type[Model],
        hf_config: Any,
        mesh_device: NullMesh,
        max_batch_size: int,
        max_seq_len: int | None = None,
        tt_data_parallel: int = 1,
        optimizations: str | None = None,
    ) -> Model:
        """``hf_config`` gives the vocabulary size; no checkpoint is read."""
        vocab_size = int(hf_config.get_text_config().vocab_size)
        return cls(mesh=mesh_device, capacity=max_batch_size, vocab_size=vocab_size)

    @classmethod
    def get_max_tokens_all_users(
        cls,
        *,
        model_name: str = "",
        num_devices: int = 1,
        tt_data_parallel: int = 1,
        max_model_len: int = 0,
        max_num_seqs: int = 1,
    ) -> int:
        """Room for every row at full length: a benchmark of the host should never preempt."""
        return max(131072, max_num_seqs * max_model_len)

    def embed_input_ids(self, input_ids: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the null model has no weights; use prefill_forward and decode_forward")

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the null model has no weights; use prefill_forward and decode_forward")

    def compute_logits(self, hidden_states: torch.Tensor) -> NoReturn:
        raise NotImplementedError("the null model has no weights; use prefill_forward and decode_forward")

    def allocate_kv_cache(self, shape: tuple[int, ...], dtype: torch.dtype, num_layers: int) -> None:
        """The null model keeps no KV."""

    def warmup_model_prefill(self, *, kv_cache: object, can_sample_on_device: bool, enable_trace: bool) -> None:
        """There is nothing to compile."""

    def warmup_model_decode(
        self, *, kv_cache: object, max_batch_size: int, num_blocks: int, can_sample_on_device: bool, enable_trace: bool
    ) -> None:
        """There is nothing to compile."""

    def prefill_forward(
        self,
        *,
        tokens: torch.Tensor,
        prompt_lens: Sequence[int],
        start_pos: Sequence[int],
        sampling_params: object = None,
        logits_rows: Sequence[int] | None = None,
        read_from_device: bool = True,
        **_: Any,
    ) -> NullOutput | torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        rows = tokens.shape[0]
        event = self._mesh.step(Phase.PREFILL, rows=rows, tokens=int(sum(prompt_lens) - sum(start_pos)))
        return self._output(event, rows, sampling_params, logits_rows, read_from_device)

    def decode_forward(
        self,
        *,
        tokens: torch.Tensor,
        sampling_params: object = None,
        logits_rows: Sequence[int] | None = None,
        read_from_device: bool = True,
        **_: Any,
    ) -> NullOutput | torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        rows = tokens.shape[0]
        event = self._mesh.step(Phase.DECODE, rows=rows, tokens=rows)
        return self._output(event, rows, sampling_params, logits_rows, read_from_device)

    def read_decode_output(self, out: NullOutput, *, async_read: bool = False) -> Any:
        if async_read:
            return out, [out.event]
        out.event.synchronize()
        return out.host

    def process_decode_output_host(self, out: NullOutput, *, is_tokens: bool) -> Any:
        out.event.synchronize()
        return out.host

    def _output(
        self,
        event: NullEvent,
        rows: int,
        sampling_params: object,
        logits_rows: Sequence[int] | None,
        read_from_device: bool,
    ) -> NullOutput | torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        host: torch.Tensor | tuple[torch.Tensor, torch.Tensor]
        if sampling_params is None:
            host = self._zeros(rows) if logits_rows is None else self._zeros(len(logits_rows))
        elif logits_rows:
            host = (self._token_rows[rows], self._zeros(len(logits_rows)))
        else:
            host = self._token_rows[rows]
        if not read_from_device:
            return NullOutput(event, host)
        event.synchronize()
        return host

    def _zeros(self, rows: int) -> torch.Tensor:
        """float32 [rows, V], made once a size. A sampler may write into it; what it samples means nothing."""
        if rows not in self._logits:
            self._logits[rows] = torch.zeros((rows, self._vocab_size))
        return self._logits[rows]


class NullForCausalLM(NullPlainForCausalLM):
    """With lanes, as ``EmulatedForCausalLM`` has them."""

    @classmethod
    def lane_counts_for(cls, mesh_shape: tuple[int, int]) -> tuple[int, ...]:
        columns = mesh_shape[1]
        return tuple(count for count in range(1, columns + 1) if columns % count == 0)
