"""Activations in e4m3, and products with them."""

from __future__ import annotations

import pytest
import torch

from baton.kernels.products.fp8_rows_gpu import quantize_rows, round_rows
from baton.kernels.products.quantized_weight import round_to_fp8, to_fp8
from baton.kernels.products.scaled_linear_gpu import padded_scales, scaled_linear, takes

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


@pytest.mark.parametrize("group", [100, 300, 60])
def test_rows_are_rounded_as_the_definition_says(group: int) -> None:
    x = torch.randn(5, 300, device=DEVICE) * torch.logspace(-3, 3, 5, device=DEVICE).unsqueeze(1)
    x[2] = 0.0

    found = round_rows(x, group)

    torch.testing.assert_close(found, round_to_fp8(x, group), rtol=1e-6, atol=0)


def test_items_and_scales_are_padded_and_give_what_was_rounded() -> None:
    x = torch.randn(5, 256, device=DEVICE)

    items, scales = quantize_rows(x, 128, 8)

    assert items.shape == (8, 256)
    assert scales.shape == (8, 2)
    assert scales.stride() == (1, 8)
    wide = items.float() * scales.repeat_interleave(128, dim=1)
    torch.testing.assert_close(wide[:5], round_to_fp8(x, 128), rtol=1e-6, atol=0)
    assert not wide[5:].any()


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
def test_a_group_that_holds_what_is_not_finite_is_nan_and_no_other(value: float) -> None:
    x = torch.randn(3, 200, device=DEVICE)
    x[1, 130] = value

    items, scales = quantize_rows(x, 100, 3)
    wide = items.float() * scales.repeat_interleave(100, dim=1)

    for found in (wide, round_rows(x, 100), round_to_fp8(x, 100)):
        assert found[1, 100:].isnan().all()
        assert found[[0, 2]].isfinite().all() and found[1, :100].isfinite().all()


def test_scales_of_weights_are_padded_to_four_and_transposed() -> None:
    scales = torch.arange(6.0).view(2, 3)

    padded = padded_scales(scales)

    assert padded.shape == (4, 2)
    assert padded.stride() == (1, 4)
    assert torch.equal(padded[:3], scales.t())


@pytest.mark.parametrize("has_blocks", [False, True])
def test_a_row_sees_the_same_activations_alone_and_beside_others(has_blocks: bool) -> None:
    quantized = to_fp8(torch.randn(64, 256, device=DEVICE), has_blocks=has_blocks)
    x = torch.randn(20, 256, device=DEVICE)

    together = quantized.linear(x, None)

    # What is rounded is equal; one row and twenty may be added up in different orders, each off by
    # K/2 eps of the sum of sizes (Higham, Accuracy and Stability, 3.5); e4m3 rounds up by 1/16.
    sizes = x[3:4].abs() @ quantized.to_dense().float().abs().t()
    eps = torch.finfo(torch.float32).eps
    off = (quantized.linear(x[3:4], None) - together[3:4]).abs()
    assert (off <= 256 * eps * 1.0625 * sizes).all()


@pytest.mark.gpu
@pytest.mark.parametrize("has_blocks", [False, True])
@pytest.mark.parametrize("num_rows", [17, 64, 1001])
def test_the_library_multiplies_what_the_definition_says(has_blocks: bool, num_rows: int) -> None:
    quantized = to_fp8(torch.randn(384, 640, device="cuda").bfloat16(), has_blocks=has_blocks)
    x = torch.randn(num_rows, 640, device="cuda").bfloat16()
    if not takes(x, quantized.items, quantized.group, torch.bfloat16):
        pytest.skip("this device has no such product")

    found = scaled_linear(x, quantized.items, quantized.scales, quantized.group)

    seen = round_to_fp8(x, quantized.group[1] or 640).float()
    wanted = seen @ quantized.to_dense().float().T
    assert float((found - wanted).abs().max()) <= 2e-2 * float(wanted.abs().max())
