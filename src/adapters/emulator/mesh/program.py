"""What the device thread runs: one prefill or one decode, on resident state that only it touches."""
from __future__ import annotations

import attrs
import numpy as np
import torch

from .checkpoint import LoadedModel
from .fingerprints import Fingerprints, Prints
from .kv_cache import PagedKVCache
from .paged_attention import DecodeStep, PageTables, PrefillStep, Span
from .rules import Rule, RuleBroken
from .sampler import sample
from .slots import DecodeCommand, Geometry, HostTables, Ints, PrefillCommand

UNKNOWN = -1


@attrs.frozen(kw_only=True, eq=False)
class StepResult:
    tokens: torch.Tensor | None
    """int32 [N or B]; rows the device did not sample hold a token outside the vocabulary"""
    logits: torch.Tensor | None
    """float32 [K, V] of the rows asked for; [N or B, 1, V] where all were, NaN in inactive rows"""


class DeviceProgram:
    """Owns the device's copy of tokens, and the fingerprints of what each slot has computed."""

    def __init__(self, model: LoadedModel, geometry: Geometry, cache: PagedKVCache, seed: int | None) -> None:
        self._model, self._geometry, self._cache = model, geometry, cache
        self._fingerprints = Fingerprints(geometry.max_seq_len)
        # Row s: the fingerprint of slot s's tokens up to each position. Committed as it is written.
        self._prints: Prints = np.zeros((geometry.capacity, geometry.max_seq_len), np.uint64)
        self._tokens: Ints = np.full(geometry.capacity, UNKNOWN, np.int64)
        self._sampled: Ints = np.full(geometry.capacity, UNKNOWN, np.int64)
        """the token the device chose last for each slot, while nobody else had a say in it"""
        self._random = np.random.default_rng(seed)
        self.garbage = model.vocab_size + 7

    @torch.no_grad()
    def prefill(self, command: PrefillCommand) -> StepResult:
        rows, positions, tokens, spans = [], [], [], []
        begin = 0
        for row, (start, end, slot) in enumerate(zip(command.starts, command.ends, command.slots, strict=True)):
            self._prints[slot, :end] = self._fingerprints.of(command.tokens[row, :end])
            rows.append(np.full(end - start, row, np.int64))
            positions.append(np.arange(start, end, dtype=np.int64))
            tokens.append(command.tokens[row, start:end])
            spans.append(Span(row, begin, begin + end - start, start))
            begin += end - start
        packed_rows, packed_positions = np.concatenate(rows), np.concatenate(positions)
        slots = np.array(command.slots, np.int64)
        tables = self._pages(command.tables, slots, np.arange(len(slots)))
        for table in tables.tables:
            pages = table[packed_rows, packed_positions // self._geometry.block_size]
            self._cache.record(pages, packed_positions, self._prints[slots[packed_rows], packed_positions])
        # After every row's writes: a row may read what another row of this step computes.
        for number, table in enumerate(tables.tables):
            for row, slot in enumerate(command.slots):
                self._verify(table[row], command.starts[row], command.ends[row], command.tables.windows[number], slot)
        step = PrefillStep(self._cache, tables, spans, packed_rows, packed_positions)
        last = np.array([span.end - 1 for span in spans])
        logits = self._model.logits(
            torch.from_numpy(np.concatenate(tokens)),
            torch.from_numpy(packed_positions),
            step,
            torch.from_numpy(last),
        )
        self._sampled[slots] = UNKNOWN
        if command.sampling is None:
            if command.logits_rows is None:
                return StepResult(tokens=None, logits=logits[:, None])
            return StepResult(tokens=None, logits=logits[list(command.logits_rows)])
        host = set(command.logits_rows or ())
        mine = np.array([row for row in range(len(slots)) if row not in host], np.int64)
        out = np.full(len(slots), self.garbage, np.int64)
        if len(mine):
            ends = np.array(command.ends, np.int64)[mine]
            out[mine] = sample(logits[torch.from_numpy(mine)], command.sampling, mine, ends, self._random)
            self._sampled[slots[mine]] = out[mine]
        wanted = logits[list(command.logits_rows)] if command.logits_rows else None
        return StepResult(tokens=torch.from_numpy(out.astype(np.int32)), logits=wanted)

    @torch.no_grad()
    def decode(self, command: DecodeCommand) -> StepResult:
        rows, positions = command.rows, command.positions
        if command.tokens is not None:
            known = self._sampled[rows]
            stale = (known != UNKNOWN) & (known != command.tokens)
            if stale.any():
                at = int(np.argmax(stale))
                raise RuleBroken(
                    Rule.STALE_RELOAD,
                    f"row {int(rows[at])}, position {int(positions[at])}: the device sampled {int(known[at])}, "
                    f"the host reloads {int(command.tokens[at])}",
                )
            self._tokens[rows] = command.tokens
        tokens = self._tokens[rows]
        if (tokens < 0).any() or (tokens >= self._model.vocab_size).any():
            at = int(np.argmax((tokens < 0) | (tokens >= self._model.vocab_size)))
            raise RuleBroken(Rule.LATE_RELOAD, f"row {int(rows[at])} has no token on the device")
        before = np.where(positions > 0, self._prints[rows, positions - 1], np.uint64(0))
        prints = self._fingerprints.extended(before, tokens, positions)
        self._prints[rows, positions] = prints
        tables = self._pages(command.tables, rows, rows)
        members = np.arange(len(rows))
        for number, table in enumerate(tables.tables):
            self._cache.record(table[members, positions // self._geometry.block_size], positions, prints)
            for index, row in enumerate(rows.tolist()):
                position = int(positions[index])
                self._verify(table[index], position, position + 1, command.tables.windows[number], row)
        step = DecodeStep(self._cache, tables, members, positions)
        host = set(command.logits_rows or ())
        logits = self._model.logits(
            torch.from_numpy(tokens), torch.from_numpy(positions), step, torch.from_numpy(members)
        )
        self._sampled[rows] = UNKNOWN
        self._tokens[rows] = UNKNOWN
        where = {row: index for index, row in enumerate(rows.tolist())}
        asked = None if command.logits_rows is None else logits[[where[row] for row in command.logits_rows]]
        if command.sampling is None:
            if asked is None:
                asked = torch.full((command.batch, 1, logits.shape[-1]), float("nan"))
                asked[torch.from_numpy(rows), 0] = logits
            return StepResult(tokens=None, logits=asked)
        mine = np.array([index for index, row in enumerate(rows.tolist()) if row not in host], np.int64)
        out = np.full(command.batch, self.garbage, np.int64)
        if len(mine):
            chosen = sample(
                logits if len(mine) == len(rows) else logits[torch.from_numpy(mine)],
                command.sampling,
                rows[mine],
                positions[mine] + 1,
                self._random,
            )
            out[rows[mine]] = chosen
            self._tokens[rows[mine]] = chosen
            self._sampled[rows[mine]] = chosen
        return StepResult(tokens=torch.from_numpy(out.astype(np.int32)), logits=asked if host else None)

    def _pages(self, host: HostTables, slots: Ints, rows: Ints) -> PageTables:
        """Buffer rows of table rows ``rows``, which belong to ``slots``."""
        offsets = (slots // self._geometry.rows_per_lane * self._geometry.num_blocks)[:, None]
        return PageTables(tuple(table[rows].astype(np.int64) + offsets for table in host.tables), host.of_layer)

    def _verify(self, pages: Ints, start: int, end: int, window: int | None, slot: int) -> None:
        first = 0 if window is None else max(start - window + 1, 0)
        self._cache.verify(pages, first, end, self._prints[slot], f"slot {slot}")
