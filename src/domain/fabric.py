"""Which fabric joins the chips of a mesh: by cluster, then what the model asks for, then what the operator says.

Members are names here; the adapter that binds ttnn looks them up (tenstorrent contract 7.2).
"""

from __future__ import annotations

from collections.abc import Mapping

import attrs

from .tt_options import FabricReliability

FABRIC_BY_CLUSTER: Mapping[str, str] = {
    "GALAXY": "FABRIC_1D_RING",
    "BLACKHOLE_GALAXY": "FABRIC_2D_TORUS_XY",
}
"""``ttnn.cluster.ClusterType`` name to ``ttnn.FabricConfig`` name, where it is not :data:`DEFAULT_FABRIC`."""

DEFAULT_FABRIC = "FABRIC_1D"

MODEL_KEYS = (
    "config",
    "reliability_mode",
    "num_planes",
    "fabric_tensix_config",
    "fabric_udm_mode",
    "fabric_manager_mode",
)
"""Arguments of ``ttnn.set_fabric_config`` that a model's ``fabric_config`` capability may name."""


class FabricError(ValueError):
    """The fabric that was asked for cannot be set."""


@attrs.frozen(kw_only=True)
class FabricChoice:
    """Arguments of ``set_fabric_config``, members by name."""

    config: str
    reliability_mode: str
    rest: Mapping[str, str | int]
    """the model's further arguments, among :data:`MODEL_KEYS`"""
    why: str
    """one phrase: who decided ``config``"""


def choose_fabric(
    *,
    cluster: str,
    num_devices: int,
    model: Mapping[str, str | int] | None = None,
    config: str | None = None,
    reliability: FabricReliability | None = None,
) -> FabricChoice | None:
    """The fabric for a mesh of ``num_devices`` chips; None where there is one chip, whatever was asked for.

    ``model`` is the class's ``fabric_config`` capability, ``config`` and ``reliability`` are the operator's options;
    each goes before what stands to its left: cluster, model, operator. Raises :class:`FabricError` for an argument
    of the model's that is none.
    """
    if num_devices < 2:
        return None
    asked = dict(model or {})
    unknown = sorted(set(asked) - set(MODEL_KEYS))
    if unknown:
        raise FabricError(
            f"the model's fabric_config names {unknown[0]!r}, which set_fabric_config does not take; "
            f"use {', '.join(MODEL_KEYS)}"
        )
    chosen, why = FABRIC_BY_CLUSTER.get(cluster, DEFAULT_FABRIC), f"cluster {cluster}"
    if "config" in asked:
        chosen, why = str(asked.pop("config")), "the model's fabric_config"
    if config is not None:
        chosen, why = config, "the option fabric_config"
    wanted = str(asked.pop("reliability_mode", FabricReliability.STRICT_INIT.value))
    return FabricChoice(
        config=chosen,
        reliability_mode=wanted if reliability is None else reliability.value,
        rest=asked,
        why=why,
    )
