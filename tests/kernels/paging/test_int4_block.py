"""Four bits an item, once a block is whole: what they stand for is as near as the scales say."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from baton.core.kv_layout import KvLayout
from baton.kernels.paging.int4_block import dequantize_block, quantize_block

BLOCK_SIZE, WIDTH = 16, 24


def unit_bytes(block_size: int, width: int) -> int:
    return KvLayout(
        model_fingerprint=b"",
        dtype="int4",
        num_layers=1,
        num_kv_heads=1,
        head_dim=width,
        block_size=block_size,
    ).unit_bytes


def quantized(kv: Tensor) -> Tensor:
    units = torch.zeros(*kv.shape[:-3], unit_bytes(*kv.shape[-2:]), dtype=torch.uint8)
    quantize_block(kv, units)
    return units


def as_read(kv: Tensor) -> Tensor:
    return dequantize_block(quantized(kv), *kv.shape[-2:])


def half_steps(kv: Tensor) -> Tensor:
    """What an item may be off: half of (most - least) / 15 of those that share a scale, and what
    float16 adds to zero and scale, 2^-10 of each."""
    keys, values = kv.unbind(-3)
    found = []
    for x, dim in ((keys, -2), (values, -1)):
        least, most = torch.aminmax(x, dim=dim, keepdim=True)
        step = (most - least + 2**-10 * least.abs()) / 15 * (1 + 2**-10)
        found.append((step / 2 * 1.001 + 2**-24).expand_as(x))
    return torch.stack(found, dim=-3)


@given(st.integers(0, 2**20), st.floats(0, 1e4), st.floats(1e-6, 1e3))
@settings(max_examples=60, deadline=None)
def test_every_item_is_within_half_a_step_wherever_its_range_lies(
    seed: int, offset: float, spread: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    kv = torch.randn(3, 2, BLOCK_SIZE, WIDTH, generator=generator) * spread
    kv += offset * torch.randn(1, 2, 1, WIDTH, generator=generator)  # as dimensions of keys lie

    assert bool(((as_read(kv) - kv).abs() <= half_steps(kv)).all())


def test_a_dimension_of_keys_that_is_large_costs_the_others_nothing() -> None:
    kv = torch.randn(2, BLOCK_SIZE, WIDTH)
    kv[0, :, 5] += 1000
    others = [d for d in range(WIDTH) if d != 5]

    error = (as_read(kv) - kv).abs()

    assert error[0][:, others].max() < 0.25
    assert error[0][:, 5].max() < 0.6


@pytest.mark.parametrize("value", [0.0, 1.0, -3.25, 65504.0, 2.0**-20])
def test_what_does_not_vary_is_kept_as_exactly_as_a_zero_is(value: float) -> None:
    kv = torch.full((2, BLOCK_SIZE, WIDTH), value)

    assert torch.equal(as_read(kv), kv)


def test_what_float16_does_not_reach_counts_as_its_largest() -> None:
    kv = torch.randn(2, BLOCK_SIZE, WIDTH)
    kv[0, 0, 0], kv[1, 0, 0] = 1e30, -1e30

    found = as_read(kv)

    assert found[0, 0, 0] == pytest.approx(65504, rel=1e-3)
    assert found[1, 0, 0] == pytest.approx(-65504, rel=1e-3)
    assert bool(found.isfinite().all())


def test_full_blocks_take_little_more_than_four_bits() -> None:
    def bits(block_size: int, width: int) -> float:
        return 8 * unit_bytes(block_size, width) / (2 * block_size * width)

    assert bits(16, 64) == 5.25
    assert bits(32, 128) <= 4.75
    assert bits(128, 128) <= 4.25
