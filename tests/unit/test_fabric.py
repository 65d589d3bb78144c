from __future__ import annotations

import enum
from typing import Any

import pytest

from stepshape.domain.fabric import FabricError, choose_fabric
from stepshape.domain.tt_options import FabricReliability
from stepshape.ports.capabilities import CapabilityError, read_capabilities


@pytest.mark.parametrize(
    ("cluster", "config"),
    [
        ("T3K", "FABRIC_1D"),
        ("N300", "FABRIC_1D"),
        ("GALAXY", "FABRIC_1D_RING"),
        ("BLACKHOLE_GALAXY", "FABRIC_2D_TORUS_XY"),
        ("CUSTOM", "FABRIC_1D"),
    ],
)
def test_the_cluster_decides_where_nobody_else_does(cluster: str, config: str) -> None:
    choice = choose_fabric(cluster=cluster, num_devices=8)
    assert choice is not None
    assert (choice.config, choice.reliability_mode, dict(choice.rest)) == (config, "STRICT_INIT", {})
    assert choice.why == f"cluster {cluster}"


def test_one_chip_has_no_fabric_whatever_is_asked_for() -> None:
    assert choose_fabric(cluster="N150", num_devices=1, model={"config": "FABRIC_2D"}, config="FABRIC_1D") is None


def test_the_model_goes_before_the_cluster_and_the_operator_before_the_model() -> None:
    model: dict[str, str | int] = {
        "config": "FABRIC_2D",
        "reliability_mode": "RELAXED_INIT",
        "num_planes": 2,
        "fabric_tensix_config": "MUX",
    }
    asked = choose_fabric(cluster="GALAXY", num_devices=32, model=model)
    assert asked is not None
    assert (asked.config, asked.reliability_mode) == ("FABRIC_2D", "RELAXED_INIT")
    assert asked.rest == {"num_planes": 2, "fabric_tensix_config": "MUX"}
    assert asked.why == "the model's fabric_config"
    told = choose_fabric(
        cluster="GALAXY",
        num_devices=32,
        model=model,
        config="FABRIC_1D",
        reliability=FabricReliability.STRICT_INIT,
    )
    assert told is not None
    assert (told.config, told.reliability_mode, told.why) == ("FABRIC_1D", "STRICT_INIT", "the option fabric_config")
    assert told.rest == asked.rest


def test_an_argument_that_set_fabric_config_does_not_take_is_named() -> None:
    with pytest.raises(FabricError, match="names 'plane_count', which set_fabric_config does not take; use config"):
        choose_fabric(cluster="T3K", num_devices=8, model={"plane_count": 2})


class Fabric(enum.Enum):
    RING = 3


def test_a_class_may_name_members_or_give_them() -> None:
    declared = {"fabric_config": {"config": Fabric.RING, "num_planes": 1}, "num_command_queues": 2}
    capabilities = read_capabilities(declared, "Model")
    assert capabilities.fabric_config == {"config": "RING", "num_planes": 1}
    assert capabilities.num_command_queues == 2
    assert read_capabilities({"fabric_config": None}, "Model").fabric_config is None


@pytest.mark.parametrize(
    ("declared", "words"),
    [
        ({"fabric_config": "FABRIC_1D"}, "is a str; declare a dict of set_fabric_config's arguments"),
        ({"fabric_config": {"config": 1.5}}, r"\['config'\] is 1.5; declare a member's name"),
        ({"num_command_queues": True}, "is True; declare 1 or 2"),
        ({"num_command_queues": 3}, "is 3; declare 1 or 2"),
    ],
)
def test_what_a_class_declares_wrongly_is_named(declared: dict[str, Any], words: str) -> None:
    with pytest.raises(CapabilityError, match=words):
        read_capabilities(declared, "Model")
