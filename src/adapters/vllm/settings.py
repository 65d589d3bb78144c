"""What the scheduler and the runner of one engine must agree on."""
from __future__ import annotations

import attrs

from ...domain.phase import Cadence
from ...domain.sampling_path import SamplingRules


@attrs.frozen(kw_only=True)
class EngineSettings:
    lanes: int
    rows_per_lane: int
    cadence: Cadence
    sampling: SamplingRules

    @property
    def capacity(self) -> int:
        return self.lanes * self.rows_per_lane
