"""Which operators the card has (spyre contract, section 6): eager and compiled, compiled only, on the host, as views.

Names are torch's without ``aten::``, overload and the underscore of the in-place form.
"""

from __future__ import annotations

import enum


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


POINTWISE = _names("""
    abs add addcdiv addcmul clamp clamp_max clamp_min div eq erf exp expm1 fill floor_divide ge gt le log log1p
    logical_and logical_not logical_or lt masked_fill maximum minimum mul ne neg pow reciprocal relu remainder round
    rsqrt rsub sigmoid sign silu softplus sqrt square sub tanh true_divide where zero
""")
REDUCTIONS = _names("_log_softmax _softmax all amax amin any max mean min sum var")
MATMULS = _names("addmm baddbmm bmm matmul mm linear")
ATTENTION = _names("scaled_dot_product_attention")
MOVES = _names("_copy_from cat copy embedding index_select constant_pad_nd stack")
EAGER = POINTWISE | REDUCTIONS | MATMULS | ATTENTION | MOVES
"""One artifact for each signature, eager; inside a graph part of the graph's."""

COMPILED_ONLY = _names("""
    _to_copy clone contiguous convert_element_type flip gelu index index_add index_copy index_put repeat
    select_scatter slice_scatter topk
""")
"""Inside graphs only. ``index`` and ``index_copy`` go to the host when eager, and have a rule of their own there."""

HOST = _names("""
    arange argmax argmin bitwise_and bitwise_not bitwise_or bitwise_xor cos cumsum exponential index_copy index isfinite
    isin isnan linspace normal random randperm sin tril triu uniform
""")
"""The card hands these to the host, with a warning: counted as fallbacks."""

VIEWS = _names("""
    _reshape_alias _unsafe_view alias as_strided detach diagonal expand movedim narrow permute reshape select slice
    split split_with_sizes squeeze t transpose unbind unfold unsqueeze view view_as
""")
"""Nothing runs."""

ALLOCATIONS = _names("""
    empty empty_like empty_strided full full_like new_empty new_empty_strided new_full new_ones new_zeros ones ones_like
    scalar_tensor zeros zeros_like
""")
BOOKKEEPING = _names("""
    _assert_async _assert_scalar _local_scalar_dense lift_fresh lift_fresh_copy record_stream resize set sym_numel
    sym_size sym_storage_offset sym_stride
""")

EXACT = _names("""
    abs amax amin argmax argmin cat clone constant_pad_nd copy embedding eq flip gather ge gt index index_copy
    index_select isfinite isin isnan le logical_and logical_not logical_or lt masked_select max maximum min minimum ne
    neg nonzero relu repeat roll scatter sort stack topk tril triu zero
""")
"""Results are elements of the arguments, or no floats: there is nothing to round."""


class Verdict(enum.IntEnum):
    """What a call is to the card; the shim's numbers."""

    KERNEL = 0
    FALLBACK = 1
    FREE = 2
    UNJUDGED = 3
    """let pass, and asked again next time"""


def plain_name(name: str) -> str:
    """``aten::add_`` -> ``add``; operators of other namespaces keep theirs."""
    namespace, _, short = name.rpartition("::")
    if namespace not in ("", "aten", "prims"):
        return name
    return short.removesuffix("_")
