"""The limits of a Spyre card: the one table of them (spyre contract, section 6).

Each limit has a name, a cause and a mend (the two sentences of its error), a probe that shows it, and the workaround of
ours that it is the reason for. When a probe runs through on a real card the limit is gone, and so is the need for the
workaround. ``stepshape spyre limits`` prints the table; the emulated card raises each by name, eager and compiled.
"""

from __future__ import annotations

import enum

import attrs

STICK = 64
"""16-bit elements in a stick of 128 bytes: the unit that the last dimension is laid out in."""
LM_HEAD_ALIGN = 64 * 32
"""Columns that a matmul as wide as a vocabulary must be a multiple of: a stick for each of 32 cores."""
SPAN_BYTES = 256 << 20
"""Bytes one core can address in one tensor."""
SPAN_WAYS = 4
"""Parts that a gather's source is split into, each for the cores of one quarter."""


class Run(enum.Enum):
    """How a probe is run."""

    EAGER = "eager"
    COMPILED = "compiled"
    DYNAMIC = "compiled with dynamic shapes"
    COLLECTIVE = "collective of two processes"
    VALUE = "value"


@attrs.frozen
class Probe:
    """``function`` is a lambda over ``arguments``, both Python text. In scope: ``torch``, ``device``, ``half`` (its
    float16) and ``ones(*shape)``, float16 on the card. Run.VALUE: the lambda is true where the limit shows.
    Run.COLLECTIVE: the arguments are the operator, the tensor, the ranks of its group and those of the world.
    """

    run: Run
    arguments: str
    function: str = "lambda *all: None"


@attrs.frozen
class LimitText:
    check: int
    """number of the check in section 6 of the contract"""
    name: str
    cause: str
    mend: str
    probe: Probe
    workaround: str | None = None
    """what we do because of it; None: only never do it"""


class Limit(enum.Enum):
    MIXED_DEVICES = LimitText(
        1,
        "mixed-devices",
        "an operator got tensors of the host and of the card",
        "move them to one side first; only copies and 0-d host numbers may cross",
        Probe(Run.EAGER, "ones(64), torch.ones(64, dtype=half)", "lambda a, b: a + b"),
        "the runner converts ids, positions and masks in one place before the model runs",
    )
    DTYPE = LimitText(
        2,
        "dtype",
        "the card has no such dtype",
        "use float16, bfloat16, float32, int32 or int64",
        Probe(Run.EAGER, "", "lambda: torch.empty(64, dtype=torch.float64, device=device)"),
        "float64 and small integers stay on the host",
    )
    EAGER_CAST = LimitText(
        2,
        "eager-cast",
        "a dtype was changed on the card outside a compiled graph",
        "cast on the host, or inside a compiled graph",
        Probe(Run.EAGER, "ones(64)", "lambda a: a.to(torch.float32)"),
        "logits go to the host before the sampler's float32",
    )
    DYNAMIC_SHAPE = LimitText(
        3,
        "dynamic-shape",
        "a compiled graph has a symbolic size",
        "compile with dynamic=False and pad each length to a bucket",
        Probe(Run.DYNAMIC, "ones(192, 64)", "lambda a: a * 2"),
        "buckets: body, query, KV and sequence ladders, and warm-up over all of them",
    )
    INT_OFFSET = LimitText(
        4,
        "int-offset",
        "an int32 input starts inside its storage, and the card reads from the start of the storage",
        "give every index table a tensor of its own, with offset 0",
        Probe(
            Run.COMPILED,
            "ones(8, 64), torch.zeros(8, dtype=torch.int32).to(device)[4:]",
            "lambda pages, table: pages.index_select(0, table)",
        ),
        "attention tables are separate tensors; none is a slice of another",
    )
    STICK_OFFSET = LimitText(
        5,
        "stick-offset",
        "a float view starts inside a stick",
        "cut the last dimension at multiples of 64 elements (32 for float32)",
        Probe(Run.EAGER, "ones(4, 256)[:, 32:160]", "lambda a: a * 2"),
        "head padding: every head begins on a stick",
    )
    EAGER_INDEX = LimitText(
        6,
        "eager-index",
        "an int32 index in an eager index or index_copy_",
        "use index_select, or run it inside a compiled graph",
        Probe(
            Run.EAGER,
            "ones(8, 64), torch.zeros(4, dtype=torch.int32).to(device)",
            "lambda pages, table: pages[table]",
        ),
        "pages are gathered with index_select and written with a compiled index_copy_",
    )
    FP32_MATMUL = LimitText(
        7,
        "fp32-matmul",
        "a matmul of float32",
        "use float16 operands",
        Probe(
            Run.EAGER,
            "torch.ones(64, 64).to(device), torch.ones(64, 64).to(device)",
            "lambda a, b: torch.mm(a, b)",
        ),
        "attention scores and probabilities stay float16",
    )
    MATMUL_STICKS = LimitText(
        7,
        "matmul-sticks",
        "the inner or head dimension of a matmul is not a multiple of 64",
        "pad it with zeros to the next multiple of 64",
        Probe(Run.EAGER, "ones(4, 96), ones(96, 64)", "lambda a, b: torch.mm(a, b)"),
        "head padding to 128 and MLP padding to 64",
    )
    LM_HEAD_WIDTH = LimitText(
        7,
        "lm-head-width",
        "a matmul as wide as a vocabulary is not a multiple of 2048 columns",
        "pad the weight's rows to a multiple of 64 x 32 and cut the logits",
        Probe(Run.EAGER, "ones(1, 64), ones(64, 32064)", "lambda h, w: torch.mm(h, w)"),
        "the lm head's weight is padded and its logits are cut on the card",
    )
    GATHER_WHOLE = LimitText(
        8,
        "gather-whole",
        "a gather takes as many rows as its source has, which faults the card",
        "give the source one row more than is ever gathered",
        Probe(
            Run.EAGER,
            "ones(8, 64), torch.zeros(8, dtype=torch.int32).to(device)",
            "lambda a, rows: a.index_select(0, rows)",
        ),
        "staging buffers have max_num_batched_tokens + 1 rows; a KV cache has a spare block",
    )
    UNCOVERED_OPERATOR = LimitText(
        9,
        "uncovered-operator",
        "the card has no such operator",
        "write it with operators that are covered, or compute it on the host",
        Probe(Run.EAGER, "ones(64)", "lambda a: torch.special.i0(a)"),
    )
    COMPILED_ONLY = LimitText(
        9,
        "compiled-only",
        "the card runs this operator inside compiled graphs only",
        "compile the function around it",
        Probe(Run.EAGER, "ones(4, 64)", "lambda a: a.topk(2)"),
        "norms, activations and KV writes are compiled even where the engine is eager",
    )
    BOOL_TRANSFER = LimitText(
        10,
        "bool-transfer",
        "a bool tensor crosses between host and card, or enters a graph",
        "send an additive float16 mask, or numbers",
        Probe(Run.EAGER, "", "lambda: torch.ones(64, dtype=torch.bool).to(device)"),
        "masks are float16 and additive",
    )
    DIM0_SLICE = LimitText(
        11,
        "dim0-slice",
        "the first dimension of a tensor with five or more is sliced",
        "slice before the view that makes it five-dimensional",
        Probe(Run.EAGER, "ones(4, 2, 2, 2, 64)", "lambda a: a[1:3]"),
    )
    BATCHED_MATMUL_DIMS = LimitText(
        11,
        "batched-matmul-dims",
        "a matmul has more than two batch dimensions",
        "fold batch dimensions until two are left",
        Probe(Run.EAGER, "ones(2, 2, 2, 4, 64), ones(2, 2, 2, 64, 64)", "lambda a, b: torch.matmul(a, b)"),
        "attention works on [KV heads, group, rows, head size]",
    )
    GATHER_SPAN = LimitText(
        12,
        "gather-span",
        "the source of a gather is larger than the cores can address (4 x 256 MiB)",
        "keep each gathered tensor, one layer's K or V pages, below 1 GiB",
        Probe(
            Run.EAGER,
            "ones(1, 1024).expand(1 << 20, 1024), torch.zeros(4, dtype=torch.int32).to(device)",
            "lambda a, rows: a.index_select(0, rows)",
        ),
        "a launch whose KV pages would pass the limit is refused",
    )
    COLLECTIVE_WIDTH = LimitText(
        13,
        "collective-width",
        "the last dimension of a collective is not a multiple of 64, and transfers cut the tail",
        "pad it to a multiple of 64 and cut the pad on the host",
        Probe(Run.COLLECTIVE, "'all_gather', ones(4, 96), 2, 2"),
        "the communicator pads what it gathers",
    )
    COLLECTIVE_WORLD = LimitText(
        13,
        "collective-world",
        "a collective's group is not the whole world, and the card reduces over the world",
        "use one group of all ranks",
        Probe(Run.COLLECTIVE, "'all_reduce', ones(4, 64), 2, 4"),
        "pipeline and data parallelism are refused",
    )
    UNWRITTEN_MEMORY = LimitText(
        14,
        "unwritten-memory",
        "memory holds what was there before, and 0 x NaN passes every mask",
        "write pad rows, unused KV slots and staging tails before they are read",
        Probe(Run.VALUE, "torch.empty(64, dtype=half, device=device)", "lambda a: bool(a.cpu().isnan().all())"),
        "pad rows are zeroed; a padded table entry never names the null block",
    )

    @property
    def text(self) -> LimitText:
        return self.value


class LimitBroken(RuntimeError):  # noqa: N818  (the name says it)
    """A call the card could not have run. ``detail`` names the operator and the tensors."""

    def __init__(self, limit: Limit, detail: str) -> None:
        text = limit.text
        super().__init__(f"{text.name}: {text.cause} ({detail}); {text.mend}")
        self.limit = limit
        self.detail = detail

    def __reduce__(self) -> tuple[type[LimitBroken], tuple[Limit, str]]:
        return LimitBroken, (self.limit, self.detail)


def limit_named(name: str) -> Limit:
    """The limit of that name. Raises KeyError."""
    return {limit.text.name: limit for limit in Limit}[name]
