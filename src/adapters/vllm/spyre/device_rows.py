"""Hidden states that stay on the device, and the model that turns chosen rows of them into logits.

vLLM's runner indexes hidden states with a host tensor and gives the result to ``compute_logits``. On a device tensor
that would bring down every row, padding included, choose on the host and send the chosen rows back up. Here indexing
only notes which rows are meant.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import attrs
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from ....domain.buckets import Ladder

Rows = npt.NDArray[np.int64]


@attrs.frozen(eq=False)
class DeviceRows:
    """Rows ``rows`` of ``hidden`` [T, h] on the device. ``last`` and ``uploaded``: the rows to sample and their index
    on the device, padded to a row bucket, which went up with the step."""

    hidden: Tensor
    rows: Rows
    last: Rows
    uploaded: Tensor

    def __getitem__(self, index: Tensor | slice) -> DeviceRows:
        chosen = self.rows[index.numpy() if isinstance(index, Tensor) else index]
        return attrs.evolve(self, rows=chosen)

    def __len__(self) -> int:
        return len(self.rows)


class ServedModel(nn.Module):
    """vLLM's model on the device, with logits of :class:`DeviceRows` on the host.

    ``ladder``: row counts that the lm head is warmed up for. ``upload``: a host index to the device.
    """

    def __init__(self, module: nn.Module, ladder: Ladder, upload: Callable[[Rows], Tensor]) -> None:
        super().__init__()
        self.module: Any = module
        self._ladder = ladder
        self._upload = upload

    def forward(self, ids: Tensor, positions: Tensor) -> Tensor:
        """Hidden states [T, h] of int64 ``ids`` and ``positions`` [T], all on the device."""
        hidden: Tensor = self.module(
            input_ids=ids, positions=positions, intermediate_tensors=None, inputs_embeds=None
        )
        return hidden

    def compute_logits(self, rows: DeviceRows) -> Tensor:
        """fp32 logits [len(rows), vocabulary] on the host.

        More rows than the ladder's top (``prompt_logprobs`` asks for a whole chunk's) go through in parts of it.
        """
        top = self._ladder.top
        parts = [self._part(rows, rows.rows[start : start + top]) for start in range(0, len(rows), top)]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _part(self, source: DeviceRows, rows: Rows) -> Tensor:
        bucket = self._ladder.fit(len(rows))
        assert bucket is not None, "a part is no longer than the ladder's top"
        if bucket >= source.hidden.shape[0]:
            # As many rows as there are: a gather of a whole source faults, and would gain nothing.
            logits = self._logits(source.hidden)
            return logits[torch.from_numpy(rows)]
        sent = np.array_equal(rows, source.last)
        index = source.uploaded if sent else self._upload(padded_rows(rows, bucket))
        return self._logits(torch.index_select(source.hidden, 0, index))[: len(rows)]

    def _logits(self, hidden: Tensor) -> Tensor:
        logits: Tensor = self.module.compute_logits(hidden)
        return logits


def padded_rows(rows: Rows, bucket: int) -> Rows:
    """``rows`` repeated from the first on up to ``bucket`` entries."""
    out = np.full(bucket, rows[0], np.int64)
    out[: len(rows)] = rows
    return out
