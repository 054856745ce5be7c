from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.kernels.paging.kv_quantize import dequantize, quantize

DTYPES = [torch.int8, torch.float8_e4m3fn]
each_dtype = pytest.mark.parametrize("dtype", DTYPES)


def bound(x: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """What the formats promise, and a float32 rounding of the quotient and of the product."""
    scale = scales.unsqueeze(-1)
    exact = scale / 2 if dtype is torch.int8 else torch.maximum(x.abs() / 2**4, scale / 2**10)
    return exact * (1 + 2**-20) + x.abs() * 2**-22


@each_dtype
@pytest.mark.parametrize("head_dim", [1, 100, 128])
@pytest.mark.parametrize("magnitude", [1e-20, 1.0, 1e20])
def test_the_error_is_within_the_format(
    dtype: torch.dtype, head_dim: int, magnitude: float
) -> None:
    x = torch.randn(3, 2, 7, head_dim, generator=torch.Generator().manual_seed(1)) * magnitude

    items, scales = quantize(x, dtype)

    assert items.dtype is dtype
    assert items.shape == x.shape
    assert scales.shape == (3, 2, 7)
    assert ((dequantize(items, scales) - x).abs() <= bound(x, scales, dtype)).all()


@each_dtype
@given(values=st.lists(st.floats(-(2.0**120), 2.0**120, width=32), min_size=1))
def test_the_error_is_within_the_format_for_any_numbers(
    dtype: torch.dtype, values: list[float]
) -> None:
    x = torch.tensor([values])

    items, scales = quantize(x, dtype)

    back = dequantize(items, scales)
    is_tiny = scales < 2**-120  # where the scale itself is a denormal number, or zero
    within = (back - x).abs() <= bound(x, scales, dtype)
    assert (within | (is_tiny.unsqueeze(-1) & (back - x).abs().lt(2**-110))).all()
    assert back.isfinite().all()


@each_dtype
def test_the_largest_number_of_a_row_is_kept(dtype: torch.dtype) -> None:
    x = torch.tensor([[0.5, -3.0, 1.0], [0.0, 0.0, 0.0], [1e-3, 2e-3, -8e-3]])

    items, scales = quantize(x, dtype)

    largest = 127 if dtype is torch.int8 else 448
    assert items.float().abs().amax(dim=-1).tolist() == [largest, 0, largest]
    assert scales.tolist() == pytest.approx([3 / largest, 0, 8e-3 / largest])


@each_dtype
def test_each_token_has_a_scale_of_its_own(dtype: torch.dtype) -> None:
    x = torch.tensor([[1e6, -1e6], [1.0, -1.0]])

    items, scales = quantize(x, dtype)

    assert dequantize(items, scales)[1].tolist() == pytest.approx([1.0, -1.0])


def test_items_of_int8_are_rounded_to_the_nearest_and_ties_to_even() -> None:
    x = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, 0.49, -126.51, 3.2]])

    items, scales = quantize(x, torch.int8)

    assert scales.tolist() == [1.0]
    assert items.tolist() == [[127, 0, 2, 2, 0, -2, 0, -127, 3]]


@each_dtype
def test_bfloat16_is_quantized_as_it_is(dtype: torch.dtype) -> None:
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(2)).to(torch.bfloat16)

    [items, scales], expected = quantize(x, dtype), quantize(x.float(), dtype)

    assert items.float().equal(expected[0].float())
    assert scales.equal(expected[1])


def test_a_dtype_without_scales_is_refused() -> None:
    with pytest.raises(ValueError, match=r"torch.float16 has no scales; torch.int8, torch.float8"):
        quantize(torch.zeros(1, 1), torch.float16)
