"""Many small tables in one upload: a sheet is filled on the host, copied once, and its regions cut out on the device.

A region is cut out by gathering whole rows of a stick (128 bytes) into a tensor of its own, never by slicing: the
device reads a slice of an index table from the table's start (spyre contract 6, check 4). The row numbers to gather are
constants, made beforehand, so that cutting costs no copy.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import attrs
import numpy as np
import numpy.typing as npt
import torch

STICK_BYTES = 128

Numbers: TypeAlias = "npt.NDArray[Any]"


@attrs.frozen
class Region:
    """A place in a sheet, in whole rows."""

    start: int
    rows: int


class Sheet:
    """One type's tables. Reserve regions, `seal` once, then each step: `write` views, `upload`, `cut`."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._width = STICK_BYTES // dtype.itemsize
        self._rows = 0
        self._declared: set[tuple[int, int]] = set()
        self._places: dict[tuple[int, int], torch.Tensor] = {}
        self._used = 0

    def reserve(self, lengths: Iterable[int]) -> Region:
        """Room for the longest of ``lengths``, the numbers of elements that a step may write there."""
        rows = [-(-length // self._width) for length in lengths]
        region = Region(self._rows, max(rows, default=0))
        self._rows += region.rows
        self._declared.update((region.start, count) for count in rows if count)
        return region

    def seal(self, device: torch.device) -> None:
        """Allocate both sides. One row more than is used: a gather of a whole source faults on the device."""
        self._device = device
        self._host = torch.zeros((self._rows + 1, self._width), dtype=self._dtype)
        self._flat: Numbers = self._host.numpy().reshape(-1)
        self._resident = torch.zeros((self._rows + 1, self._width), dtype=self._dtype, device=device)
        for start, count in self._declared:
            self._place(start, count)

    def write(self, region: Region, length: int) -> Numbers:
        """The host side of the region's first ``length`` elements, to be filled before `upload`."""
        if length > region.rows * self._width:
            raise ValueError(
                f"{length} elements do not fit a region of {region.rows * self._width}; the ladders it was reserved "
                "from and the step's disagree"
            )
        begin = region.start * self._width
        self._used = max(self._used, region.start + -(-length // self._width))
        return self._flat[begin : begin + length]

    def upload(self) -> int:
        """Copy what was written since the last upload; the number of host-to-device copies, 1 or 0."""
        used, self._used = self._used, 0
        if not used:
            return 0
        self._resident[:used].copy_(self._host[:used])
        return 1

    def cut(self, region: Region, length: int) -> torch.Tensor:
        """[length] on the device, with storage of its own from offset 0."""
        rows = -(-length // self._width)
        return self._resident.index_select(0, self._place(region.start, rows)).view(-1)[:length]

    def _place(self, start: int, rows: int) -> torch.Tensor:
        place = self._places.get((start, rows))
        if place is None:
            numbers = np.arange(start, start + rows, dtype=np.int32)
            place = self._places[start, rows] = torch.from_numpy(numbers).to(self._device)
        return place
