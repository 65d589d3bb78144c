"""Rows whose token is chosen on the host, through vLLM's own sampler.

The batch holds exactly the rows that are sampled together, densely: a host-sampled row costs what it costs, and 31
device-sampled neighbours cost nothing. Membership changes are told to the logits processors in vLLM's own terms
(removed, added, moved), and everything that follows from membership is built only then.
"""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import attrs
import numpy as np
import torch
import xgrammar
from vllm import SamplingParams
from vllm.v1.outputs import LogprobsTensors
from vllm.v1.sample.logits_processor import LogitsProcessor, LogitsProcessors
from vllm.v1.sample.logits_processor.interface import BatchUpdate, MoveDirectionality
from vllm.v1.sample.metadata import SamplingMetadata
from vllm.v1.sample.sampler import Sampler

from ...domain.seeds import token_seed
from .outputs import NOTHING_LEFT, Failure


@attrs.define(eq=False, kw_only=True)
class HostRow:
    """A request on its row, as host sampling knows it. One object a stay on the row: identity tells stays apart."""

    request_id: str
    row: int
    params: SamplingParams
    prompt: list[int]
    """the client's tokens"""
    outputs: list[int]
    """generated so far; grows by one a sampled token"""


@attrs.frozen(kw_only=True)
class GrammarMask:
    """int32 bitmask rows, one a request id, in order (xgrammar's packing: 32 tokens a word, LSB first)."""

    request_ids: Sequence[str]
    bitmask: Any


@attrs.frozen(kw_only=True)
class HostTokens:
    """What was sampled, in the order of the rows asked for."""

    tokens: list[int]
    logprobs: LogprobsTensors | None
    """[rows, max + 1]; None where no row asked"""
    failed: dict[int, Failure]
    """index of the row -> why it has no token"""


NOT_A_NUMBER = Failure("the device returned logits that are not numbers")


class _RowCheck(LogitsProcessor):
    """Runs after every mask: finds rows with nothing left to choose and makes them harmless to the sampler, so that
    one impossible row does not take the batch with it (field case 21)."""

    def __init__(self) -> None:
        self.failed: dict[int, Failure] = {}

    def is_argmax_invariant(self) -> bool:
        return False

    def update_state(self, batch_update: BatchUpdate | None) -> None:
        self.failed = {}

    def apply(self, logits: torch.Tensor) -> torch.Tensor:
        top = logits.amax(dim=-1)
        bad = ~torch.isfinite(top)
        if bool(bad.any()):
            for i in torch.nonzero(bad).flatten().tolist():
                self.failed[i] = NOT_A_NUMBER if bool(torch.isnan(top[i])) else NOTHING_LEFT
                logits[i] = 0.0
        return logits


class HostBatch:
    """Rows sampled together, again and again. ``processors`` makes a fresh set of logits processors for it."""

    def __init__(self, *, vocab_size: int, sampler: Sampler, processors: Callable[[], LogitsProcessors]) -> None:
        self._vocab_size = vocab_size
        self._sampler = sampler
        self._make_processors = processors
        self._check = _RowCheck()
        self.reset()

    def reset(self) -> None:
        """Forget every row and what the logits processors hold of it: nothing half-done is left behind."""
        self._processors = self._make_processors()
        # Last, so that it sees what every other mask left.
        self._processors.non_argmax_invariant.append(self._check)
        self._rows: list[HostRow] = []
        self._metadata: SamplingMetadata | None = None

    @torch.no_grad()
    def sample(self, rows: Sequence[HostRow], logits: torch.Tensor, grammar: GrammarMask | None) -> HostTokens:
        """``logits`` float32 [len(rows), vocabulary], one row each, in order; overwritten. Appends each sampled token
        to its row's ``outputs``."""
        update = self._sync(rows)
        order = [rows.index(row) for row in self._rows] if list(rows) != self._rows else None
        if order is not None:
            logits = logits[order]
        if grammar is not None:
            self._apply_grammar(logits, grammar)
        for processor in self._processors.all:
            processor.update_state(update)
        self._check.update_state(update)
        if update is not None or self._metadata is None:
            self._metadata = self._build_metadata()
        for i, generator in self._metadata.generators.items():
            row = self._rows[i]
            assert row.params.seed is not None
            generator.manual_seed(token_seed(row.params.seed, len(row.outputs)))
        sampled = self._sampler(logits, self._metadata)
        tokens: list[int] = sampled.sampled_token_ids[:, 0].tolist()
        logprobs = sampled.logprobs_tensors
        failed = dict(self._check.failed)
        for i, row in enumerate(self._rows):
            if i not in failed:
                row.outputs.append(tokens[i])
        if order is not None:
            back = [0] * len(order)
            for i, at in enumerate(order):
                back[at] = i
            tokens = [tokens[i] for i in back]
            failed = {order[i]: why for i, why in failed.items()}
            if logprobs is not None:
                logprobs = LogprobsTensors(
                    logprobs.logprob_token_ids[back], logprobs.logprobs[back], logprobs.selected_token_ranks[back]
                )
        return HostTokens(tokens=tokens, logprobs=logprobs, failed=failed)

    def _sync(self, rows: Sequence[HostRow]) -> BatchUpdate | None:
        """Make the batch hold exactly ``rows``: newcomers fill the holes of those that left, the tail the rest."""
        old = self._rows
        if len(rows) == len(old) and all(a is b for a, b in zip(rows, old, strict=True)):
            return None
        wanted = {id(row) for row in rows}
        have = {id(row) for row in old}
        holes = [i for i, row in enumerate(old) if id(row) not in wanted]
        new = [row for row in rows if id(row) not in have]
        if not holes and not new:
            return None
        batch: list[HostRow | None] = [row if id(row) in wanted else None for row in old]
        added = []
        for row in new:
            if holes:
                index = holes.pop(0)
                batch[index] = row
            else:
                index = len(batch)
                batch.append(row)
            added.append((index, row.params, row.prompt, row.outputs))
        removed = list(holes)
        moved = []
        while holes:
            last = len(batch) - 1
            if batch[last] is None:
                batch.pop()
                holes.remove(last)
                continue
            hole = holes.pop(0)
            # A hole that the tail fills was not left empty: naming it as removed would clear the newcomer's state.
            removed.remove(hole)
            batch[hole] = batch.pop()
            moved.append((last, hole, MoveDirectionality.UNIDIRECTIONAL))
        self._rows = [row for row in batch if row is not None]
        return BatchUpdate(
            batch_size=len(self._rows), removed=sorted(removed, reverse=True), added=added, moved=moved
        )

    def _apply_grammar(self, logits: torch.Tensor, grammar: GrammarMask) -> None:
        at = {row.request_id: i for i, row in enumerate(self._rows)}
        masks = np.full((len(self._rows), grammar.bitmask.shape[1]), -1, np.int32)
        indices = []
        for i, request_id in enumerate(grammar.request_ids):
            index = at.get(request_id)
            if index is not None:
                masks[index] = grammar.bitmask[i]
                indices.append(index)
        if indices:
            xgrammar.apply_token_bitmask_inplace(logits, torch.from_numpy(masks), indices=indices)

    def _build_metadata(self) -> SamplingMetadata:
        rows = self._rows
        params = [row.params for row in rows]
        vocab = self._vocab_size
        greedy = [p.temperature < 1e-5 for p in params]
        top_k = [p.top_k if 0 < p.top_k < vocab else vocab for p in params]
        penalties = any(
            p.presence_penalty or p.frequency_penalty or p.repetition_penalty != 1.0 for p in params
        )
        allowed: torch.Tensor | None = None
        if any(p.allowed_token_ids is not None for p in params):
            allowed = torch.zeros((len(rows), vocab), dtype=torch.bool)
            for i, p in enumerate(params):
                if p.allowed_token_ids is not None:
                    allowed[i] = True
                    allowed[i, p.allowed_token_ids] = False
        prompt: torch.Tensor | None = None
        if penalties:
            width = max(len(row.prompt) for row in rows)
            prompt = torch.full((len(rows), width), vocab, dtype=torch.int64)
            for i, row in enumerate(rows):
                prompt[i, : len(row.prompt)] = torch.tensor(row.prompt, dtype=torch.int64)
        wanted_logprobs = [vocab if p.logprobs == -1 else p.logprobs for p in params if p.logprobs is not None]
        by_ids = {i: list(p.logprob_token_ids) for i, p in enumerate(params) if p.logprob_token_ids}
        bad_words = {i: p.bad_words_token_ids for i, p in enumerate(params) if p.bad_words_token_ids}
        return SamplingMetadata(
            temperature=None if all(greedy) else torch.tensor([p.temperature for p in params], dtype=torch.float32),
            all_greedy=all(greedy),
            all_random=not any(greedy),
            top_p=None if all(p.top_p == 1.0 for p in params) else _floats(p.top_p for p in params),
            # A neutral tensor costs a sort of the whole vocabulary.
            top_k=None if all(k == vocab for k in top_k) else torch.tensor(top_k, dtype=torch.int32),
            generators={
                i: torch.Generator() for i, p in enumerate(params) if p.seed is not None and not greedy[i]
            },
            max_num_logprobs=max(wanted_logprobs, default=None),
            no_penalties=not penalties,
            prompt_token_ids=prompt,
            frequency_penalties=_floats(p.frequency_penalty for p in params),
            presence_penalties=_floats(p.presence_penalty for p in params),
            repetition_penalties=_floats(p.repetition_penalty for p in params),
            output_token_ids=[row.outputs for row in rows],
            allowed_token_ids_mask=allowed,
            bad_words_token_ids=bad_words,
            logitsprocs=self._processors,
            logprob_token_ids=by_ids or None,
        )


def _floats(values: Any) -> torch.Tensor:
    return torch.tensor(list(values), dtype=torch.float32)
