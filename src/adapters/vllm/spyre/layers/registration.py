"""Puts our layer classes where vLLM looks for out-of-tree ones."""

from __future__ import annotations

from torch import Tensor
from vllm.model_executor.custom_op import CustomOp, PluggableLayer, op_registry_oot

from .....ports.layers import LayerMath
from .activations import activation_classes
from .linears import linear_classes
from .norms import norm_classes
from .rotary import rotary_classes
from .vocabulary import vocabulary_classes


def register_layers(math: LayerMath[Tensor]) -> None:
    """Every layer that a model builds from now on is ours where we have one. A second call changes nothing."""
    for name, layer in {**linear_classes(math), **vocabulary_classes(math)}.items():
        if name not in op_registry_oot:
            PluggableLayer.register_oot(layer, name=name)
    for name, layer in {**norm_classes(math), **rotary_classes(math), **activation_classes(math)}.items():
        if name not in op_registry_oot:
            CustomOp.register_oot(layer, name=name)
