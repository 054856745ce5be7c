"""Weights that somebody else has rounded: cut into groups that kernels take, and stacked."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baton.engine.checkpoint.quantized.on_cpu import on_cpu
from baton.kernels.products.int4_weight import Int4Weight
from baton.kernels.products.int8_weight import Int8Weight
from baton.kernels.products.quantized_groups import quantized_groups, stack
from baton.kernels.products.quantized_weight import FP8, QuantizedWeight, to_fp8, to_int4, to_int8

FLOAT32 = torch.float32


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def whole_numbers(*shape: int, bits: int = 4, seed: int = 0) -> Tensor:
    return torch.randint(0, 2**bits, shape, dtype=torch.uint8, generator=generator(seed))


def scales_of(*shape: int, seed: int = 0) -> Tensor:
    return torch.rand(*shape, generator=generator(seed)) + 0.5


def groups(
    rows: int, width: int, num_groups: int, seed: int = 0, **options: int
) -> QuantizedWeight:
    items, scales = whole_numbers(rows, width, seed=seed), scales_of(rows, num_groups, seed=seed)
    zeros = whole_numbers(rows, num_groups, seed=seed) if options.get("has_zeros") else None
    quantized = quantized_groups(items, scales, zeros, 4, dtype=FLOAT32)
    assert quantized is not None
    return quantized


@pytest.mark.parametrize(("width", "num_groups", "cut"), [(256, 2, 128), (192, 3, 64), (96, 3, 32)])
@pytest.mark.parametrize("has_zeros", [False, True])
def test_groups_of_four_bits_stand_for_what_they_are(
    width: int, num_groups: int, cut: int, has_zeros: bool
) -> None:
    items, scales = whole_numbers(10, width), scales_of(10, num_groups)
    zeros = whole_numbers(10, num_groups, seed=1) if has_zeros else None

    quantized = quantized_groups(items, scales, zeros, 4, dtype=FLOAT32)

    assert quantized is not None
    size = width // num_groups
    middle = 8.0 if zeros is None else zeros.float().repeat_interleave(size, 1)
    expected = (items.float() - middle) * scales.repeat_interleave(size, 1)
    assert quantized.group == (1, cut)
    assert quantized.shape == (10, width)
    assert torch.equal(quantized.to_dense(), expected)
    assert torch.equal(quantized.embedding(torch.tensor([3, 3, 0]), None), expected[[3, 3, 0]])


def test_wide_groups_are_cut_each_piece_with_the_scale_of_the_whole() -> None:
    items, scales = whole_numbers(6, 384), scales_of(6, 1)

    quantized = quantized_groups(items, scales, whole_numbers(6, 1, seed=2), 4, dtype=FLOAT32)

    assert quantized is not None
    assert quantized.zeros is not None
    assert quantized.scales.shape == quantized.zeros.shape == (6, 3)
    assert torch.equal(quantized.scales, scales.expand(6, 3))


def test_zeros_in_the_middle_need_not_be_kept() -> None:
    middle = torch.full((6, 2), 8, dtype=torch.uint8)

    quantized = quantized_groups(whole_numbers(6, 64), scales_of(6, 2), middle, 4, dtype=FLOAT32)

    assert quantized is not None
    assert quantized.zeros is None


def test_eight_bits_are_kept_with_a_sign() -> None:
    items, scales = whole_numbers(6, 256, bits=8), scales_of(6, 2)

    quantized = quantized_groups(items, scales, None, 8, dtype=FLOAT32)

    assert quantized is not None
    assert quantized.items.dtype is torch.int8
    expected = (items.float() - 128) * scales.repeat_interleave(128, 1)
    assert torch.equal(quantized.to_dense(), expected)


def test_what_no_kernel_takes_is_none() -> None:
    def quantized(width: int, num_groups: int, bits: int, zero: int) -> QuantizedWeight | None:
        zeros = torch.full((4, num_groups), zero, dtype=torch.uint8)
        items, scales = whole_numbers(4, width), scales_of(4, num_groups)
        return quantized_groups(items, scales, zeros, bits, dtype=FLOAT32)

    assert quantized(48, 3, 4, 8) is None  # groups of 16
    assert quantized(128, 2, 8, 128) is None  # groups of 64, of eight bits
    assert quantized(256, 2, 8, 127) is None  # zeros, of eight bits
    assert quantized(100, 3, 4, 8) is None  # groups of several sizes


def test_inputs_in_an_order_of_their_own_are_put_back() -> None:
    items, scales = whole_numbers(6, 64), scales_of(6, 2)
    order = torch.randperm(64, generator=generator())

    quantized = quantized_groups(items, scales, None, 4, dtype=FLOAT32, order=order)

    assert quantized is not None
    expected = torch.empty(6, 64)
    expected[:, order] = (items.float() - 8) * scales.repeat_interleave(32, 1)
    assert torch.equal(quantized.to_dense(), expected)
    x = torch.randn(3, 64, generator=generator())
    torch.testing.assert_close(quantized.linear(x, None), x @ expected.T)


@pytest.mark.parametrize("rows", [(10, 6, 6), (128, 64, 200)])
def test_stacked_weights_stand_for_what_each_stands_for(rows: tuple[int, ...]) -> None:
    kinds = {
        "int4": [groups(n, 128, 2, seed=i) for i, n in enumerate(rows)],
        "zeros": [groups(n, 128, 2, seed=i, has_zeros=i % 2) for i, n in enumerate(rows)],
        "int8": [to_int8(torch.randn(n, 128, generator=generator(n))) for n in rows],
        "fp8": [to_fp8(torch.randn(n, 128, generator=generator(n))) for n in rows],
        "blocks": [
            to_fp8(torch.randn(n, 128, generator=generator(n)), has_blocks=True) for n in rows
        ],
    }
    for parts in kinds.values():
        one = stack(parts)
        assert one is not None
        assert torch.equal(one.to_dense(), torch.cat([part.to_dense() for part in parts]))


def test_blocks_stay_as_large_as_they_can() -> None:
    """Of 128 outputs each, so that the library multiplies them."""
    whole = [to_fp8(torch.randn(n, 256), has_blocks=True) for n in (256, 128, 200)]
    cut = [to_fp8(torch.randn(n, 256), has_blocks=True) for n in (192, 128)]

    assert stack(whole).group == (128, 128)  # type: ignore[union-attr]
    assert stack(cut).group == (64, 128)  # type: ignore[union-attr]


def test_weights_of_several_kinds_are_not_stacked() -> None:
    int4, int8 = groups(4, 128, 2), to_int8(torch.randn(4, 128))
    ordered = quantized_groups(
        whole_numbers(4, 128),
        scales_of(4, 2),
        None,
        4,
        dtype=FLOAT32,
        order=torch.randperm(128, generator=generator()),
    )
    assert ordered is not None

    assert stack([int4, int8]) is None
    assert stack([int4, groups(4, 128, 4)]) is None
    assert stack([int4, ordered]) is None
    assert stack([ordered, ordered]) is not None


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_cpu_takes_eight_bits_as_they_are(is_gated: bool, dtype: torch.dtype) -> None:
    items, scales = whole_numbers(72, 100, bits=8), scales_of(72, 1)
    items[0, 0] = 0  # which is -128
    quantized = quantized_groups(items, scales, None, 8, dtype=dtype)
    assert quantized is not None

    kept = on_cpu(quantized, is_gated=is_gated)

    assert isinstance(kept, Int8Weight)
    assert torch.equal(kept.rows(torch.arange(72)), (items.float() - 128) * scales)
    x = torch.randn(5, 100, generator=generator()).to(dtype)
    if is_gated:
        wide = torch.chunk(kept.reference(x, None), 2, 1)
        expected = torch.nn.functional.silu(wide[0]) * wide[1]
        found = kept.gated_linear(x, "silu", None)
    else:
        expected, found = kept.reference(x, None), kept.linear(x, None)
    torch.testing.assert_close(found, expected.to(dtype), rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize(("width", "num_groups"), [(256, 2), (96, 3), (384, 1)])
def test_a_cpu_takes_four_bits_with_scales_in_bfloat16(
    is_gated: bool, width: int, num_groups: int
) -> None:
    items = whole_numbers(72, width)
    scales = scales_of(72, num_groups).bfloat16().float()
    quantized = quantized_groups(items, scales, None, 4, dtype=FLOAT32)
    assert quantized is not None

    kept = on_cpu(quantized, is_gated=is_gated)

    assert isinstance(kept, Int4Weight)
    expected = (items.float() - 8) * scales.repeat_interleave(width // num_groups, 1)
    assert torch.equal(kept.rows(torch.arange(72)), expected)


def test_a_cpu_widens_the_rest() -> None:
    zeros, plain = groups(4, 128, 2, has_zeros=1), groups(4, 128, 2)
    by_groups = quantized_groups(
        whole_numbers(4, 256, bits=8), scales_of(4, 2), None, 8, dtype=FLOAT32
    )
    assert by_groups is not None
    fp8 = to_fp8(torch.randn(4, 128))
    assert fp8.items.dtype is FP8

    assert on_cpu(plain, is_gated=False) is not None
    for quantized in (zeros, by_groups, fp8):
        assert on_cpu(quantized, is_gated=False) is None


@pytest.mark.parametrize("quantized", [to_int8, to_int4, to_fp8])
def test_no_rows_are_multiplied(quantized: Callable[..., QuantizedWeight]) -> None:
    assert quantized(torch.randn(4, 64)).linear(torch.empty(0, 64), None).shape == (0, 4)


@pytest.mark.parametrize("quantized", [to_int8, to_int4, to_fp8])
def test_a_weight_that_is_no_number_is_not_made_one(
    quantized: Callable[..., QuantizedWeight],
) -> None:
    weight = torch.randn(4, 64)
    weight[1, 3] = torch.nan

    assert quantized(weight).to_dense()[1].isnan().any()
