"""The plugin's worker on the double of ttnn: it opens its mesh as on a card."""

from __future__ import annotations

import attrs

from stepshape.adapters.vllm.tenstorrent.config import ResolvedConfig
from stepshape.domain.selection import Device
from stepshape.plugins.tenstorrent.worker import Worker
from stepshape.ports.mesh import Mesh

DOUBLE_WORKER = f"{__name__}.DoubleWorker"


class DoubleWorker(Worker):
    def open_mesh(self, config: ResolvedConfig) -> Mesh:
        return super().open_mesh(attrs.evolve(config, device=Device.REAL))
