"""Grouped products with experts in few bits, on a GPU, against one product an expert."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from bench.quantization.checkpoint_writer import mxfp4
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from torch import Tensor

from baton.kernels.experts.grouped_quantized_gpu import grouped_quantized
from baton.kernels.experts.quantized_experts import QuantizedExperts, empty_like
from baton.kernels.products.linear_gpu import linear_tiles
from baton.kernels.products.quantized_groups import quantized_fp4, quantized_groups
from baton.kernels.products.quantized_weight import QuantizedWeight, to_fp8, to_int8

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def to_fp4(weight: Tensor) -> QuantizedWeight:
    return quantized_fp4(*mxfp4(weight.float()), weight.dtype)


def with_zeros(weight: Tensor) -> QuantizedWeight:
    generator = torch.Generator().manual_seed(len(weight))
    items = torch.randint(0, 16, weight.shape, generator=generator).to(torch.uint8)
    shape = (len(weight), weight.shape[1] // 32)
    zeros = torch.randint(0, 16, shape, generator=generator).to(torch.uint8)
    scales = torch.rand(shape, generator=generator) + 0.5
    quantized = quantized_groups(items, scales, zeros, 4, dtype=weight.dtype)
    assert quantized is not None
    return quantized


WAYS: dict[str, Callable[[Tensor], QuantizedWeight]] = {
    "fp4": to_fp4,
    "int4 with zeros": with_zeros,
    "int8": to_int8,
    "fp8": to_fp8,
    "fp8 blocks": lambda weight: to_fp8(weight, has_blocks=True),
}


def experts_of(way: str, num_columns: int, width: int, dtype: torch.dtype) -> QuantizedExperts:
    torch.manual_seed(0)
    each = [WAYS[way](torch.randn(num_columns, width).to(dtype)) for _ in range(4)]
    experts = empty_like(4, each[0], DEVICE)
    for expert, quantized in enumerate(each):
        experts.put(expert, quantized.to(DEVICE))
    return experts


def by_expert(x: Tensor, experts: QuantizedExperts, stops: list[int]) -> Tensor:
    starts = [0, *stops[:-1]]
    return torch.cat(
        [
            x[start:stop].float() @ experts.to_dense(expert).float().T
            for expert, (start, stop) in enumerate(zip(starts, stops, strict=True))
        ]
    ).to(x.dtype)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("stops", [[3, 3, 4, 20], [0, 0, 0, 1], [100, 101, 170, 170]])
@pytest.mark.parametrize(("num_columns", "width"), [(100, 256), (200, 384)])
def test_each_row_is_multiplied_by_what_its_expert_stands_for(
    way: str, stops: list[int], num_columns: int, width: int
) -> None:
    experts = experts_of(way, num_columns, width, torch.float32)
    x = torch.randn(stops[-1], width, device=DEVICE)

    found = grouped_quantized(
        x,
        experts.items,
        experts.scales,
        torch.tensor(stops, dtype=torch.int32, device=DEVICE),
        group=experts.group,
        zeros=experts.zeros,
    )

    torch.testing.assert_close(found, by_expert(x, experts, stops), rtol=1e-4, atol=2e-3)


def test_widths_may_end_within_a_step() -> None:
    """As those of GPT-OSS, of 2880 inputs."""
    experts = experts_of("fp4", 40, 96, torch.bfloat16)
    x = torch.randn(9, 96, device=DEVICE).bfloat16()
    ends = torch.tensor([2, 2, 9, 9], dtype=torch.int32, device=DEVICE)

    found = grouped_quantized(x, experts.items, experts.scales, ends, group=experts.group)

    torch.testing.assert_close(found, by_expert(x, experts, [2, 2, 9, 9]), rtol=1e-2, atol=1e-1)


@pytest.mark.parametrize("way", WAYS)
def test_a_gpu_gives_what_the_definition_gives(way: str) -> None:
    experts = experts_of(way, 64, 128, torch.float32)
    x, ends = torch.randn(7, 128), torch.tensor([2, 2, 6, 7], dtype=torch.int32)
    on_cpu = empty_like(4, experts.one(0), "cpu")
    for expert in range(4):
        on_cpu.put(expert, experts.one(expert).to("cpu"))
    expected = on_cpu.grouped_linear(x, ends)

    with tensors_on_a_gpu():
        found = experts.grouped_linear(x.to(DEVICE), ends.to(DEVICE))

    torch.testing.assert_close(found.cpu(), expected, rtol=1e-4, atol=2e-3)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_single_weight_of_fp4_is_multiplied(dtype: torch.dtype) -> None:
    quantized = to_fp4(torch.randn(70, 160, generator=torch.Generator().manual_seed(0)).to(dtype))
    quantized, x = quantized.to(DEVICE), torch.randn(5, 160, device=DEVICE).to(dtype)

    found = linear_tiles(x, quantized.items, quantized.scales, group=quantized.group)

    expected = (x.float() @ quantized.to_dense().float().T).to(dtype)
    tolerance = 1e-4 if dtype is torch.float32 else 1e-1
    torch.testing.assert_close(found, expected, rtol=1e-2, atol=tolerance)


def test_every_code_and_scale_of_fp4_is_widened_exactly() -> None:
    codes = torch.arange(16, dtype=torch.uint8).repeat(2)
    blocks = (codes[0::2] | codes[1::2] << 4).view(1, 1, 16).repeat(6, 1, 1)
    powers = torch.tensor([[1], [100], [127], [128], [140], [250]], dtype=torch.uint8)
    quantized = quantized_fp4(blocks, powers, torch.float32).to(DEVICE)

    found = linear_tiles(
        torch.eye(32, device=DEVICE), quantized.items, quantized.scales, group=quantized.group
    )

    assert torch.equal(found.T, quantized.to_dense())


def test_an_expert_of_another_kind_is_not_put_among_others() -> None:
    experts = experts_of("int8", 8, 64, torch.float32)

    with pytest.raises(ValueError, match="expert 2 is kept in another way"):
        experts.put(2, with_zeros(torch.randn(8, 64)))
    with pytest.raises(ValueError, match="shapes do not fit"):
        experts.grouped_linear(torch.randn(3, 32), torch.zeros(4, dtype=torch.int32))
