"""Products on a GPU against those of torch in double precision."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from torch import Tensor

from baton.kernels.products import linear_gpu as module
from baton.kernels.products.batch_invariant_weight import BatchInvariantWeight
from baton.kernels.products.linear import GATES
from baton.kernels.products.linear_gpu import linear_tiles
from baton.kernels.products.quantized_groups import quantized_groups, stack
from baton.kernels.products.quantized_weight import QuantizedWeight, to_fp8, to_int4, to_int8
from baton.kernels.products.scaled_linear_gpu import scales_of_columns

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def with_zeros(weight: Tensor, group: int) -> QuantizedWeight:
    """As AWQ and GPTQ have them: from the least to the largest of a group in 15 steps."""
    groups = weight.float().cpu().view(len(weight), -1, group)
    low, high = groups.amin(-1), groups.amax(-1)
    scales = (high - low) / 15
    zeros = (-low / scales).round().clamp(0, 15)
    items = (groups / scales[..., None] + zeros[..., None]).round().clamp(0, 15)
    quantized = quantized_groups(
        items.flatten(1).to(torch.uint8), scales, zeros.to(torch.uint8), 4, dtype=weight.dtype
    )
    assert quantized is not None
    return quantized.to(DEVICE)


WAYS: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "int8": to_int8,
    "int4 by 32": to_int4,
    "int4 by 128": lambda weight: to_int4(weight, 128),
    "int4 by 64, with zeros": lambda weight: with_zeros(weight, 64),
    "int4 by 128, with zeros": lambda weight: with_zeros(weight, 128),
    "fp8": to_fp8,
    "fp8 blocks": lambda weight: to_fp8(weight, has_blocks=True),
}


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    return torch.randn(*shape, generator=generator).to(dtype).to(DEVICE)


def product(x: Tensor, quantized: QuantizedWeight, bias: Tensor | None = None) -> Tensor:
    return linear_tiles(
        x,
        quantized.items,
        quantized.scales,
        group=quantized.group,
        zeros=quantized.zeros,
        bias=bias,
    )


def is_close(found: Tensor, x: Tensor, weight: Tensor) -> bool:
    """Within the rounding of the items, and of what comes out."""
    wanted = x.double() @ weight.double().T
    limit = (x.double().abs() @ weight.double().abs().T) * 2.0**-8 + 1e-5
    return bool(((found.double() - wanted).abs() <= limit).all())


@pytest.mark.parametrize("num_rows", [0, 1, 5, 16, 20])
@pytest.mark.parametrize(("num_columns", "width"), [(100, 100), (64, 1100)])
def test_wide_weights_give_the_product(num_rows: int, num_columns: int, width: int) -> None:
    x, weight, bias = random(num_rows, width), random(num_columns, width), random(num_columns)

    found = linear_tiles(x, weight, bias=bias)

    torch.testing.assert_close(found, x @ weight.T + bias, rtol=1e-4, atol=1e-4)


def test_bfloat16_may_be_left_unrounded() -> None:
    x, weight = random(3, 100, dtype=torch.bfloat16), random(70, 100, dtype=torch.bfloat16)

    found = linear_tiles(x, weight, dtype=torch.float32)

    torch.testing.assert_close(found, x.float() @ weight.float().T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize(("num_rows", "num_columns", "width"), [(1, 100, 256), (18, 200, 1152)])
def test_quantized_weights_give_the_product_with_what_they_stand_for(
    way: str, num_rows: int, num_columns: int, width: int
) -> None:
    x, quantized = random(num_rows, width), WAYS[way](random(num_columns, width))

    found = product(x, quantized)

    torch.testing.assert_close(found, x @ quantized.to_dense().T, rtol=1e-4, atol=2e-4)


@pytest.mark.parametrize("way", WAYS)
def test_quantized_weights_multiply_bfloat16(way: str) -> None:
    quantized = WAYS[way](random(96, 384, dtype=torch.bfloat16))
    x = random(2, 384, dtype=torch.bfloat16)

    assert is_close(product(x, quantized), x, quantized.to_dense())


def test_a_row_gives_the_same_beside_any_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MIN_SPLIT_ITEMS", 64)  # several splits of a tiny weight
    x, weight = random(16, 300), random(40, 300)

    together = linear_tiles(x, weight)

    assert torch.equal(together[3:4], linear_tiles(x[3:4], weight))
    torch.testing.assert_close(together, x @ weight.T, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("way", "limit"), [("int8", 0.5), ("int4 by 32", 0.5)])
def test_items_are_half_a_scale_off_at_most(way: str, limit: float) -> None:
    weight = random(30, 128)
    quantized = WAYS[way](weight)

    steps = quantized.scales.repeat_interleave(128 // quantized.scales.shape[1], dim=1)

    assert bool(((quantized.to_dense() - weight).abs() <= steps * limit * 1.0001).all())


@pytest.mark.parametrize("way", WAYS)
def test_a_row_of_the_table_is_what_is_looked_up(way: str) -> None:
    quantized = WAYS[way](random(150, 256))
    ids = torch.tensor([0, 149, 3, 3], device=DEVICE)

    found = quantized.embedding(ids, 2.0)

    assert torch.equal(found, quantized.to_dense()[ids] * 2.0)


@pytest.mark.parametrize("way", ["int4 by 64, with zeros", "int8", "fp8"])
def test_weights_stacked_of_several_have_the_scales_of_each(way: str) -> None:
    parts = [WAYS[way](random(n, 128) * n) for n in (64, 32, 100)]
    one = stack(parts)
    assert one is not None
    x = random(3, 128)

    torch.testing.assert_close(
        product(x, one), torch.cat([product(x, part) for part in parts], 1), rtol=1e-4, atol=1e-2
    )


def test_inputs_are_taken_in_the_order_of_the_weight() -> None:
    order = torch.randperm(256, generator=torch.Generator().manual_seed(0))
    items = torch.randint(0, 16, (40, 256), generator=torch.Generator().manual_seed(1))
    quantized = quantized_groups(
        items.to(torch.uint8), random(40, 2).cpu().abs(), None, 4, dtype=torch.float32, order=order
    )
    assert quantized is not None
    quantized, x = quantized.to(DEVICE), random(3, 256)

    with tensors_on_a_gpu():
        found = quantized.linear(x, None)

    torch.testing.assert_close(found, x @ quantized.to_dense().T, rtol=1e-4, atol=1e-3)


def test_scales_of_several_outputs_are_given_to_each() -> None:
    scales = torch.tensor([[1.0], [2.0], [3.0]])

    assert scales_of_columns(scales, 2, 5).tolist() == [[1.0, 1.0, 2.0, 2.0, 3.0]]
    assert scales_of_columns(scales[:1], 5, 5).tolist() == [[1.0] * 5]


@pytest.mark.parametrize("way", ["wide", "int8"])
def test_a_row_has_the_same_bits_beside_any_others_where_tiles_are_fixed(
    way: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MAX_PARTIAL_BYTES", 4 * 2 * 70 * 64)  # a tile of rows at once
    weight = random(70, 1152, dtype=torch.bfloat16)
    x, bias = random(67, 1152, dtype=torch.bfloat16), random(70, dtype=torch.bfloat16)
    kept = (
        BatchInvariantWeight(weight)
        if way == "wide"
        else replace(WAYS[way](weight), is_batch_invariant=True)
    )
    assert module.num_splits(70, 1152, 64) == 2

    with tensors_on_a_gpu():
        everybody = kept.linear(x, bias)
        for first, stop in ((0, 1), (40, 57), (63, 66)):
            assert torch.equal(kept.linear(x[first:stop], bias), everybody[first:stop])
        scores = kept.logits(x[:2])
        assert scores.dtype is torch.float32
        assert torch.equal(kept.logits(x[1:2]), scores[1:])
        assert torch.equal(
            kept.gated_linear(x[1:2], "silu", None), GATES["silu"](kept.linear(x[:2], None))[1:]
        )
    assert is_close(everybody.float() - bias.float(), x, kept.to_dense())
