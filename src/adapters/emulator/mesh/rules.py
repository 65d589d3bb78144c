"""What the emulated mesh holds its users to: one rule a line, each with a name, a text and its source.

A real mesh breaks these silently (wrong text, a hang, a corrupted trace). Here each raises, by name.
Sources are sections of the Tenstorrent contract ("8.26" is invariant 26 of section 8).
"""
from __future__ import annotations

import enum

import attrs


@attrs.frozen
class RuleText:
    """``cause`` and ``mend`` are the two sentences of the error; ``source`` is where the rule comes from."""

    name: str
    cause: str
    mend: str
    source: str


class Rule(enum.Enum):
    UNSEEN_SHAPE = RuleText(
        "unseen-shape",
        "a shape that was never warmed up arrived after traces were captured",
        "run only the shapes, and the sampling path, that warm-up covered",
        "3.7, 8.27",
    )
    READ_BEFORE_EVENT = RuleText(
        "read-before-event",
        "an asynchronous read was used before its event was synchronized",
        "synchronize every event that read_decode_output returned, then process the output",
        "3.5",
    )
    MIXED_BATCH = RuleText(
        "mixed-batch",
        "a prefill carries a row with nothing to compute, or a decode row sent as a one-token prefill",
        "send a step of one phase; a decoding row goes through decode_forward",
        "8.1, 8.4",
    )
    STALE_BLOCK = RuleText(
        "stale-block",
        "a page table names a block that is not the row's",
        "send the live blocks only, null (0) beyond them, and never write a block that another row uses",
        "8.26",
    )
    UNWRITTEN_READ = RuleText(
        "unwritten-read",
        "attention would read a KV position that nothing has written",
        "compute every position before it is attended to; check start_pos and the page table",
        "3.3, design 4",
    )
    WRONG_SLOT = RuleText(
        "wrong-slot",
        "a row runs in a slot that does not hold its request",
        "prefill a request into the slot it decodes in, and keep it there",
        "8.10, 8.14",
    )
    LATE_RELOAD = RuleText(
        "late-reload",
        "the host changed what the device keeps without commanding a reload",
        "command reload_inputs, reload_page_table or reload_sampling_params in the step that changes them",
        "3.10, 8.21",
    )
    STALE_RELOAD = RuleText(
        "stale-reload",
        "a reload carries a token that is not the one the device sampled",
        "apply every step in flight before building a step that reloads",
        "8.19",
    )
    RELOAD_CONFLICT = RuleText(
        "reload-conflict",
        "the reload commands of one step contradict each other",
        "never send reload_page_table with reload_inputs, nor reset_sampling_state without reload_inputs",
        "3.10",
    )
    NOT_NEUTRAL = RuleText(
        "not-neutral",
        "an inactive row carries values",
        "send token 0, position -1, block 0 and the default sampling parameters in rows that do not run",
        "3.4",
    )
    INPUT_SHAPE = RuleText(
        "input-shape",
        "the inputs of one step disagree in shape or range",
        "send the shapes and dtypes that the contract lists",
        "3.3, 3.4",
    )
    SAMPLING_WIRE = RuleText(
        "sampling-wire",
        "a sampling parameter is outside what the wire encodes",
        "send lists: temperature >= 0, 1 <= top_k <= vocabulary, 0 <= top_p <= 1, seed an int64 or None",
        "3.8",
    )
    DEVICE_TOP_K = RuleText(
        "device-top-k",
        "a stochastic row asks for more candidates than the device sampler keeps",
        "sample rows with top_k off or above max_device_top_k on the host",
        "3.6, 3.9",
    )
    LANES = RuleText(
        "lanes",
        "the lane count does not fit",
        "use a lane count that divides the mesh's columns, and a batch that divides by it",
        "3.9, 1.5",
    )
    KV_SHAPE = RuleText(
        "kv-shape",
        "the KV cache asked for is not the one the model needs",
        "allocate (blocks, kv_heads // min(chips a lane, kv_heads), block_size, head_size) for each attention layer",
        "3.2",
    )

    @property
    def text(self) -> RuleText:
        return self.value


class RuleBroken(RuntimeError):  # noqa: N818  (the name says it)
    """The host broke ``rule``. ``detail`` names the rows, slots or positions involved."""

    def __init__(self, rule: Rule, detail: str) -> None:
        text = rule.text
        super().__init__(f"{text.name}: {text.cause} ({detail}); {text.mend}")
        self.rule = rule
        self.detail = detail
