"""Weights and activations in few bits, of numbers that nobody trained: how far off they may be."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu import operators
from baton.kernels.cpu.library import library
from baton.kernels.products import int4_weight, int8_rows, int8_weight
from baton.kernels.products.int8_rows import TINY
from baton.kernels.products.linear import linear, logits
from baton.kernels.products.packed_quantized_weight import PackedQuantizedWeight

QUANTIZERS: dict[str, Callable[..., PackedQuantizedWeight]] = {
    "int8": int8_weight.quantize,
    "int4": int4_weight.quantize,
}
DTYPES = (torch.float32, torch.bfloat16)
GROUP, WIDTH = 32, 70
"""Two groups, and part of one."""


@pytest.fixture(params=["compiled", "torch"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which means weights are rounded and products computed."""
    if request.param == "torch":
        monkeypatch.setattr(operators, "runs", lambda *tensors: False)
    elif library() is None:
        pytest.skip("there is no C++ compiler")
    return str(request.param)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def peculiar_rows() -> dict[str, Tensor]:
    """By what is peculiar about them: rows [WIDTH], each of its own kind."""
    plain, ramp = normal(WIDTH), torch.arange(WIDTH).float() - WIDTH // 2
    rows = {
        "zeros": torch.zeros(WIDTH),
        "negative zeros": torch.full((WIDTH,), -0.0),
        "all equal": torch.full((WIDTH,), 0.37),
        "all equal, negative": torch.full((WIDTH,), -0.37),
        "either sign": torch.where(torch.arange(WIDTH) % 2 == 0, 0.37, -0.37),
        "the middle between two steps": ramp / 2,
        "as far on either side": ramp.clamp(-8, 8),
        "numbers that are no numbers to bfloat16": torch.full((WIDTH,), 1e-40),
        "just too small": plain.sign() * 0.9e-30,
        "just large enough": plain.sign() * 1.1e-29,
        "the largest there are": torch.full((WIDTH,), 3.38e38) * plain.sign(),
    }
    for place in (0, 31, 32, WIDTH - 1):
        for outlier in (1e6, -3e38):
            rows[f"{outlier} at {place}"] = plain.index_fill(0, torch.tensor([place]), outlier)
    return rows


def values_of(weight: PackedQuantizedWeight) -> Tensor:
    """float64 [N, K]: what the numbers that are kept stand for."""
    return weight.rows(torch.arange(weight.shape[0])).double()


def in_groups(rows: Tensor) -> Tensor:
    return functional.pad(rows, (0, -rows.shape[1] % GROUP)).view(len(rows), -1, GROUP)


def assert_bounded_in_eight_bits(weight: Tensor, kept: Tensor) -> None:
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    assert ((kept - weight).abs() <= step * 0.5001 + TINY).all()


def assert_bounded_in_four_bits(weight: Tensor, kept: Tensor) -> None:
    """By half a step, or a whole one and a little where a number was cut off."""
    groups, kept = in_groups(weight), in_groups(kept)
    top, bottom = groups.amax(dim=-1, keepdim=True), groups.amin(dim=-1, keepdim=True)
    step = (torch.where(top > -bottom, top, bottom) / -8).bfloat16().double()
    is_cut = groups / step > 7.5
    limit = step.abs() * torch.where(is_cut, 1 + 1 / 32, 0.5001)
    assert ((kept - groups).abs() <= limit + 8.1 * TINY).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_stated_bounds_hold_for_rows_of_any_kind(dtype: torch.dtype, means: str) -> None:
    weight = torch.stack(list(peculiar_rows().values())).to(dtype)

    assert_bounded_in_eight_bits(weight.double(), values_of(int8_weight.quantize(weight)))
    assert_bounded_in_four_bits(weight.double(), values_of(int4_weight.quantize(weight)))


numbers = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.floats(-4, 4, width=32),
    st.sampled_from([0.0, -0.0, 1e-30, -1e-30, 1.17549435e-38, 8.0, -8.0, 7.5, 3e38]),
)


@given(st.lists(numbers, min_size=1, max_size=40), st.sampled_from(DTYPES))
@settings(max_examples=150, deadline=None)
def test_the_stated_bounds_hold_for_whatever_numbers(row: list[float], dtype: torch.dtype) -> None:
    weight = torch.tensor([row]).to(dtype).clamp(-3.38e38, 3.38e38)

    assert_bounded_in_eight_bits(weight.double(), values_of(int8_weight.quantize(weight)))
    assert_bounded_in_four_bits(weight.double(), values_of(int4_weight.quantize(weight)))


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("dtype", DTYPES)
def test_peculiar_rows_are_packed_to_the_bytes_of_the_reference(dtype: torch.dtype) -> None:
    weight = torch.stack(list(peculiar_rows().values())).to(dtype)

    eight, (packed, scales) = int8_weight.quantize(weight), int8_weight.reference(weight, False)

    assert eight.scales is not None
    assert torch.equal(eight.packed, packed)
    assert torch.equal(eight.scales, scales)
    four = int4_weight.quantize(weight).packed
    assert torch.equal(four, int4_weight.reference(weight, False))


@pytest.mark.parametrize("bits", QUANTIZERS)
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", [torch.nan, torch.inf, -torch.inf])
def test_a_weight_that_is_not_finite_spoils_its_own_outputs_and_is_not_rounded_away(
    bits: str, dtype: torch.dtype, wrong: float, means: str
) -> None:
    weight, x = normal(40, WIDTH), normal(3, WIDTH, seed=1).to(dtype)
    for row, place in ((7, 33), (8, 50), (9, WIDTH - 1)):
        weight[row, place] = wrong

    kept = QUANTIZERS[bits](weight.to(dtype))

    is_spoilt = ~linear(x, kept).isfinite()
    assert is_spoilt[:, 7:10].all()
    assert not is_spoilt[:, :7].any() and not is_spoilt[:, 10:].any()
    assert not kept.rows(torch.arange(7, 10)).isfinite().all(dim=1).any()
    assert kept.rows(torch.tensor([6, 10])).isfinite().all()


@pytest.mark.parametrize("bits", QUANTIZERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_activations_of_any_kind_are_off_by_half_a_step_of_their_row(
    bits: str, dtype: torch.dtype, means: str
) -> None:
    """What a product of them is off by: half a step for each unit of weight, and rounded sums."""
    rows = {name: row for name, row in peculiar_rows().items() if row.abs().max() < 1e30}
    x, kept = (
        torch.stack(list(rows.values())).to(dtype),
        QUANTIZERS[bits](normal(40, WIDTH).to(dtype)),
    )
    weight = values_of(kept)

    found = logits(x, kept).double()

    half_step = x.double().abs().amax(dim=1, keepdim=True) / 254
    of_sums = 2.0**-20 * (x.double().abs() @ weight.abs().T + 127 * half_step)
    error = (found - x.double() @ weight.T).abs()
    assert (error <= half_step * weight.abs().sum(dim=1) * 1.0001 + of_sums + TINY * WIDTH).all()


@pytest.mark.parametrize("bits", QUANTIZERS)
def test_a_row_too_small_to_be_inverted_counts_as_zeros(bits: str, means: str) -> None:
    """Whatever stands in it; what is a little larger counts."""
    kept, x = QUANTIZERS[bits](normal(40, WIDTH)), normal(1, WIDTH, seed=1)
    signs = x.sign()

    for small in (1e-36, 1e-38, 1e-42, 0.99e-30):
        assert not logits(signs * small, kept).any()
    assert logits(signs * 1.01e-30, kept).any()


@pytest.mark.parametrize("bits", QUANTIZERS)
@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_of_activations_may_lie_apart(bits: str, dtype: torch.dtype, means: str) -> None:
    wide, kept = normal(9, 3 * WIDTH).to(dtype), QUANTIZERS[bits](normal(40, WIDTH).to(dtype))
    middle = wide[:, WIDTH : 2 * WIDTH]

    assert torch.equal(linear(middle, kept), linear(middle.contiguous(), kept))


def test_a_row_of_activations_is_off_by_half_a_step() -> None:
    x = torch.stack(list(peculiar_rows().values()))

    q, scale = int8_rows.reference(x)

    assert q.abs().max() <= 127
    assert ((q.double() * scale - x).abs() <= scale.double() * 0.5001 + TINY).all()
