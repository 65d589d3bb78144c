"""The token-major kernels on plain CPU tensors: right, and moved by nothing but a sequence's own data."""

from __future__ import annotations

import attrs
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from stepshape.adapters.torch_spyre.attention.forward import AttentionKernels, TokenMajorAttention
from stepshape.adapters.torch_spyre.attention.kernels import CHUNK_TOKENS, kv_store
from stepshape.adapters.torch_spyre.attention.sheets import Sheet
from stepshape.adapters.torch_spyre.attention.steps import AttentionSteps, staging_rows
from stepshape.adapters.torch_spyre.attention.tables import FlatTables, SequenceTables, StepTables
from stepshape.domain.attention_plan import DecodeForm
from stepshape.domain.buckets import Ladder
from stepshape.ports.compiler import Uncompiled

from ..attention_cases import CPU, batch, layer, reference, shapes

MIXED = [(1, 0), (1, 63), (40, 100), (1, 64), (1, 700), (70, 0), (1, 300)]
TRAITS = [(0.0, None), (5.0, None), (0.0, 70), (3.0, 200)]
FEW = settings(max_examples=7)


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    """Beside a busy process a second one makes these tests many times slower (spyre contract 11, fault 6)."""
    torch.set_num_threads(1)


def pieces(rows: torch.Tensor, lens: list[int]) -> list[torch.Tensor]:
    ends = np.cumsum(lens).tolist()
    return [rows[end - count : end] for end, count in zip(ends, lens, strict=True)]


def tensors(step: StepTables) -> list[torch.Tensor]:
    out = [step.body_rows, step.live, step.slots, *step.extra.values()]
    for kernels in step.kernels.values():
        for tables in kernels:
            fields = (getattr(tables, field.name) for field in attrs.fields(type(tables)))
            out += [value for value in fields if isinstance(value, torch.Tensor)]
    return out


@pytest.mark.parametrize("form", DecodeForm)
@pytest.mark.parametrize(("soft_cap", "window"), TRAITS)
@pytest.mark.parametrize(("dtype", "bound"), [(torch.float32, 2e-6), (torch.float16, 4e-3)])
def test_a_mixed_step_is_what_plain_attention_gives(
    form: DecodeForm, soft_cap: float, window: int | None, dtype: torch.dtype, bound: float
) -> None:
    cases = batch(MIXED)
    one = layer(shapes(decode=form), soft_cap=soft_cap, window=window, dtype=dtype)
    out = one.run(cases, body=128)
    assert (out[: cases.rows].float() - reference(cases, 0.125, soft_cap, window)).abs().max() < bound
    assert (out[cases.rows :] == 0).all(), "padding is zero, or the next layer stores what it holds"


@FEW
@given(
    st.lists(
        st.one_of(st.tuples(st.just(1), st.integers(0, 500)), st.tuples(st.integers(1, 40), st.integers(0, 300))),
        min_size=1,
        max_size=6,
    ),
    st.sampled_from(DecodeForm),
    st.sampled_from([None, 1, 64, 65, 130]),
    st.sampled_from([(4, 4), (6, 2), (5, 1)]),
)
def test_any_step_is_what_plain_attention_gives(
    lens: list[tuple[int, int]], form: DecodeForm, window: int | None, heads: tuple[int, int]
) -> None:
    cases = batch(lens, heads=heads[0], kv_heads=heads[1])
    limits = shapes(decode=form, max_num_batched_tokens=256, query=Ladder((1, 16, 256)))
    one = layer(limits, heads=heads[0], window=window, dtype=torch.float32)
    assert (one.run(cases) - reference(cases, 0.125, 0.0, window)).abs().max() < 2e-6


@pytest.mark.parametrize("form", DecodeForm)
@pytest.mark.parametrize("poison", [float("nan"), -6e4])
@pytest.mark.parametrize("window", [None, 70])
def test_not_a_bit_depends_on_unused_slots_padded_rows_or_staging_tails(
    form: DecodeForm, poison: float, window: int | None
) -> None:
    """Every slot that no sequence has written, the null block, the body's padding and both staging buffers."""
    cases = batch(MIXED)
    one = layer(shapes(decode=form), window=window)
    assert torch.equal(one.run(cases, body=128), one.run(cases, body=128, poison=poison))


@FEW
@given(st.permutations(range(len(MIXED))), st.sampled_from(DecodeForm), st.sampled_from([None, 70]))
def test_not_a_bit_depends_on_the_order_of_the_batch(order: list[int], form: DecodeForm, window: int | None) -> None:
    cases = batch(MIXED)
    one = layer(shapes(decode=form), window=window)
    parts = pieces(one.run(cases, body=128), cases.query_lens)
    moved = pieces(one.run(cases.ordered(order), body=128), [cases.query_lens[i] for i in order])
    assert all(torch.equal(moved[place], parts[i]) for place, i in enumerate(order))


@pytest.mark.parametrize("form", DecodeForm)
def test_alone_or_together_results_stay_within_a_fp16_step_or_two(form: DecodeForm) -> None:
    """Other bucket shapes sum in another order: 2e-3 on values of about 1, where an fp16 step is 1e-3."""
    cases = batch(MIXED)
    together = pieces(layer(shapes(decode=form)).run(cases, body=128), cases.query_lens)
    for form_alone in DecodeForm:
        one = layer(shapes(decode=form_alone))
        for i in range(len(MIXED)):
            alone = one.run(cases.ordered([i]), body=max(1, cases.query_lens[i]))
            assert (alone[: cases.query_lens[i]].float() - together[i].float()).abs().max() <= 2e-3


@pytest.mark.parametrize("form", DecodeForm)
def test_large_scores_neither_overflow_nor_drown_a_sequence(form: DecodeForm) -> None:
    """Scores of 40 and more, whose exponent no fp16 holds; a step of such a score is 0.03, hence the bound."""
    cases = batch(MIXED)
    out = layer(shapes(decode=form), scale=1.0).run(cases)
    assert (out.float() - reference(cases, 1.0)).abs().max() < 0.1


@pytest.mark.parametrize("wrong", [0, 1])
def test_a_sequence_that_went_wrong_takes_no_other_with_it(wrong: int) -> None:
    cases = batch([(1, 70), (1, 200), (30, 40), (1, 5)])
    one = layer(shapes(max_num_seqs=4, entries=Ladder((2, 11, 65))))
    before = one.run(cases)
    cases.keys[wrong][10] = float("nan")
    after = one.run(cases)
    assert after[wrong].isnan().any()
    others = [row for row in range(cases.rows) if row != wrong]
    assert torch.equal(after[others], before[others])


def test_a_step_with_more_entries_than_one_kernel_holds_runs_as_several() -> None:
    cases = batch([(1, 500), (1, 600), (1, 64), (1, 1000), (1, 3)])
    one = layer(shapes(entries=Ladder((4, 17))))
    assert len(one.tables(cases, 8).kernels[None]) == 4
    out = one.run(cases, body=8)
    assert (out[:5].float() - reference(cases, 0.125)).abs().max() < 4e-3


def test_a_chunk_longer_than_a_score_tile_crosses_it() -> None:
    lens = [(100, 2 * CHUNK_TOKENS), (1, CHUNK_TOKENS - 1), (60, CHUNK_TOKENS - 30)]
    cases = batch(lens, heads=2, kv_heads=1)
    limits = shapes(max_model_len=4096, max_num_batched_tokens=200)
    for window in (None, 40, 1500):
        one = layer(limits, heads=2, window=window, dtype=torch.float32)
        assert (one.run(cases) - reference(cases, 0.125, 0.0, window)).abs().max() < 2e-6


def test_tables_own_their_storage_from_the_start_and_never_name_the_null_block() -> None:
    """A view of a larger table is read from the table's start by the device: the fault in which every sequence but the
    first read the first one's pages."""
    cases = batch(MIXED)
    for form in DecodeForm:
        step = layer(shapes(decode=form), window=70).tables(cases, 128)
        all_of = tensors(step)
        assert all(tensor.storage_offset() == 0 for tensor in all_of)
        assert len({tensor.untyped_storage().data_ptr() for tensor in all_of}) == len(all_of)
        for kernels in step.kernels.values():
            assert all((tables.pages != 0).all() for tables in kernels)


def test_every_sequence_reads_its_own_pages() -> None:
    cases = batch([(9, 200), (3, 100), (1, 130), (1, 70)])
    step = layer(shapes()).tables(cases, 128)
    flat, *singles = step.kernels[None]
    assert isinstance(flat, FlatTables)
    table = cases.block_table
    assert flat.pages.tolist()[:5] == [*table[2, :3], *table[3, :2]]
    assert flat.owner.tolist()[:5] == [0, 0, 0, 1, 1]
    for sequence, tables in enumerate(singles):
        assert isinstance(tables, SequenceTables)
        blocks = -(-(cases.query_lens[sequence] + cases.context_lens[sequence]) // 64)
        assert tables.pages.tolist()[:blocks] == table[sequence, :blocks].tolist()


def test_one_upload_of_each_type_serves_every_window_and_whatever_goes_along() -> None:
    limits = shapes()
    steps = AttentionSteps(
        limits, windows=(None, 70, 200), body=Ladder((8, 128)), device=CPU, extra={"ids": Ladder((128,))}
    )
    cases = batch(MIXED)
    ids = np.arange(128)
    step = steps.build(cases.query_lens, cases.context_lens, cases.block_table, cases.slots(), 128, {"ids": ids})
    assert step.copies == 3 and set(step.kernels) == {None, 70, 200}
    assert step.extra["ids"].tolist() == ids.tolist()
    assert step.slots.tolist() == [*cases.slots().tolist(), *[0] * (128 - cases.rows)]
    assert step.body_rows.tolist() == [*range(cases.rows), *[steps.rows - 1] * (128 - cases.rows)]


def test_a_later_step_sees_nothing_of_an_earlier_one() -> None:
    one, fresh = layer(shapes(), window=70), layer(shapes(), window=70)
    one.tables(batch([(1, 5), (1, 200), (1, 200), (70, 100)]), 128)
    for lens in ([(1, 190)], [(1, 65), (2, 3)]):
        small = batch(lens, seed=3)
        for mine, theirs in zip(tensors(one.tables(small, 4)), tensors(fresh.tables(small, 4)), strict=True):
            assert torch.equal(mine, theirs)


def test_keys_and_values_go_to_their_slots_from_strided_views_and_padding_to_the_null_block() -> None:
    k_pages, v_pages = (torch.zeros(3, 64, 2, 64) for _ in range(2))
    fused = torch.randn(3, 4 * 64)
    key, value = fused[:, :128].view(3, 2, 64), fused[:, 128:].view(3, 2, 64)
    kv_store(k_pages, v_pages, torch.tensor([130, 64, 0]), key, value)
    assert torch.equal(k_pages[2, 2], key[0]) and torch.equal(v_pages[1, 0], value[1])
    assert torch.equal(k_pages[0, 0], key[2])
    assert k_pages.abs().sum((2, 3)).count_nonzero() == 3


def test_a_row_without_a_slot_is_stored_in_the_null_block() -> None:
    one = layer(shapes())
    step = one.steps.build([2], [0], np.ones((1, 16), np.int32), np.array([64, -1]), 4)
    assert step.slots.tolist() == [64, 0, 0, 0]


def test_staging_has_a_row_more_than_any_gather_takes() -> None:
    assert staging_rows(512, 16) == 513
    assert staging_rows(8, 16) == 17


def test_what_does_not_fit_is_refused() -> None:
    sheet = Sheet(torch.int32)
    region = sheet.reserve([5])
    sheet.seal(CPU)
    assert sheet.write(region, 32).shape == (32,)
    with pytest.raises(ValueError, match="33 elements do not fit a region of 32"):
        sheet.write(region, 33)
    with pytest.raises(ValueError, match="block_size=4096 is above 2048"):
        AttentionSteps(shapes(block_size=4096, max_model_len=8192), body=Ladder((1,)), device=CPU)
    one, kernels = layer(shapes()), AttentionKernels(Uncompiled())
    with pytest.raises(ValueError, match="has window 70 where steps are built for"):
        TokenMajorAttention(kernels, one.steps, one.staging, scale=1.0, window=70)
