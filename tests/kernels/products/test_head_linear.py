"""Products of each head with a matrix of its own, against their definition."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.kernels.cpu.operators import runs
from baton.kernels.products import head_linear as kernel
from baton.kernels.products.head_linear import PackedHeads

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
RELATIVE = {torch.float32: 1e-5, torch.bfloat16: 1e-2, torch.float16: 1e-2}


def made(tokens: int, heads: int, rows: int, width: int, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """x, as the beginning of wider rows, and W."""
    generator = torch.Generator().manual_seed(tokens)
    x = torch.randn(tokens, heads, width + 6, generator=generator).to(dtype)[..., :width]
    return x, torch.randn(heads, rows, width, generator=generator).to(dtype)


def assert_near(y: Tensor, x: Tensor, weight: Tensor) -> None:
    expected = torch.einsum("tni,noi->tno", x.float(), weight.float())
    bound = RELATIVE[y.dtype] * expected.abs().max().item()
    torch.testing.assert_close(y.float(), expected, rtol=0, atol=bound)


@compiled
@each_dtype
@pytest.mark.parametrize(
    ("tokens", "heads", "rows", "width"),
    [(1, 1, 1, 2), (1, 3, 100, 36), (9, 2, 64, 128), (300, 2, 33, 512), (17, 5, 31, 10)],
)
def test_packed_heads_are_multiplied_as_defined(
    tokens: int, heads: int, rows: int, width: int, dtype: torch.dtype
) -> None:
    x, weight = made(tokens, heads, rows, width, dtype)
    packed = kernel.pack_heads(weight)
    assert isinstance(packed, PackedHeads)
    assert packed.shape == weight.shape

    assert_near(kernel.head_linear(x, packed), x, weight)


@pytest.mark.parametrize(("dtype", "width"), [(torch.float16, 8), (torch.bfloat16, 7)], ids=str)
def test_what_cannot_be_packed_is_multiplied_too(dtype: torch.dtype, width: int) -> None:
    x, weight = made(5, 2, 9, width, dtype)
    kept = kernel.pack_heads(weight)
    assert kept is weight

    assert_near(kernel.head_linear(x, kept), x, weight)


@each_dtype
def test_one_row_may_stand_for_all_heads(dtype: torch.dtype) -> None:
    x, weight = made(7, 3, 20, 24, dtype)
    shared = x[:, :1].expand(-1, 3, -1)

    assert_near(kernel.head_linear(shared, kernel.pack_heads(weight)), shared, weight)


@each_dtype
def test_some_heads_are_a_view_of_all(dtype: torch.dtype) -> None:
    x, weight = made(7, 5, 40, 24, dtype)
    whole = kernel.pack_heads(weight)

    part = kernel.head_linear(x[:, 1:3], kernel.some_heads(whole, 1, 3))

    assert_near(part, x[:, 1:3], weight[1:3])


@compiled
@each_dtype
def test_a_row_has_the_same_bits_beside_any_others(dtype: torch.dtype) -> None:
    x, weight = made(600, 2, 40, 256, dtype)
    packed = kernel.pack_heads(weight)
    whole = kernel.head_linear(x, packed)

    for first, stop in ((0, 1), (5, 6), (255, 260), (13, 599)):
        assert torch.equal(kernel.head_linear(x[first:stop], packed), whole[first:stop])


@each_dtype
@pytest.mark.parametrize("is_turned", [False, True])
def test_on_a_gpu_a_row_may_have_the_same_bits_beside_any_others(
    dtype: torch.dtype, is_turned: bool
) -> None:
    x, weight = made(70, 3, 100, 72, dtype)
    if is_turned:  # as one direction of latent heads is of the other
        weight = weight.transpose(1, 2).contiguous().transpose(1, 2)
    fixed = kernel.BatchInvariantHeads(weight)
    whole = kernel.head_linear(x, fixed)
    assert_near(whole, x, weight)

    for first, stop in ((0, 1), (5, 6), (13, 69)):
        assert torch.equal(kernel.head_linear(x[first:stop], fixed), whole[first:stop])


def test_other_shapes_are_refused() -> None:
    x, weight = made(2, 3, 4, 6, torch.float32)
    with pytest.raises(ValueError, match="do not fit"):
        kernel.head_linear(x[:, :2], kernel.pack_heads(weight))
