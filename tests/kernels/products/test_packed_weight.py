"""Products with packed weights, against the same in float64."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.torch_threads import threads
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu.library import library
from baton.kernels.products.embedding import embedding, reference
from baton.kernels.products.linear import gated_linear, linear, logits
from baton.kernels.products.packed_weight import PackedWeight, can_pack, pack

pytestmark = pytest.mark.skipif(library() is None, reason="there is no C++ compiler")

DTYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 2, 3, 4, 5, 7, 8, 9, 16, 33, 70)
SHAPES = ((100, 100), (32, 64), (1, 2), (17, 66), (47, 64), (259, 1024))
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def assert_rounded(found: Tensor, exact: Tensor, num_terms: int) -> None:
    """As near as sums in float32 of so many terms of about 1, stored in the dtype of `found`."""
    errors = {torch.float32: 1e-6, torch.bfloat16: 2.0**-8}
    slack = 2.0**-22 * num_terms
    torch.testing.assert_close(found.double(), exact, rtol=errors[found.dtype], atol=slack)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("has_bias", [False, True])
def test_products_with_packed_weights_are_matrix_products(
    dtype: torch.dtype, shape: tuple[int, int], has_bias: bool
) -> None:
    outputs, width = shape
    weight, bias = random(outputs, width, dtype=dtype), random(outputs, dtype=dtype, seed=1)
    packed = pack(weight)

    for rows in ROWS:
        x = random(rows, width, dtype=dtype, seed=rows)
        exact = x.double() @ weight.double().T
        assert_rounded(logits(x, packed), exact, width)
        found = linear(x, packed, bias if has_bias else None)
        assert found.dtype is dtype
        assert_rounded(found, exact + bias.double() if has_bias else exact, width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("shape", [(100, 100), (16, 32), (1, 4), (31, 32), (300, 256)])
def test_a_gate_is_applied_where_it_is_computed(
    dtype: torch.dtype, activation: str, has_bias: bool, shape: tuple[int, int]
) -> None:
    outputs, width = shape
    weight = random(2 * outputs, width, dtype=dtype) / 8
    bias = random(2 * outputs, dtype=dtype, seed=1)
    packed = pack(weight, is_gated=True)

    for rows in ROWS:
        x = random(rows, width, dtype=dtype, seed=rows)
        exact = x.double() @ weight.double().T
        if has_bias:
            exact += bias.double()
        gate, up = exact.chunk(2, dim=-1)
        found = gated_linear(x, packed, activation, bias if has_bias else None)
        assert found.dtype is dtype
        assert_rounded(found, ACTIVATIONS[activation](gate) * up, width)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gated", [False, True])
@pytest.mark.parametrize("outputs", [2, 32, 100])
def test_packing_loses_nothing(dtype: torch.dtype, is_gated: bool, outputs: int) -> None:
    weight = random(outputs, 34, dtype=dtype)

    packed = pack(weight.T.contiguous().T, is_gated=is_gated)

    assert packed.shape == (outputs, 34)
    assert packed.packed.data_ptr() % 64 == 0
    assert torch.equal(packed.to_dense(), weight)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_row_has_the_same_bits_beside_any_other_rows(dtype: torch.dtype, is_gated: bool) -> None:
    x, weight = (
        random(300, 512, dtype=dtype),
        pack(random(224, 512, dtype=dtype), is_gated=is_gated),
    )

    def multiply(rows: Tensor) -> Tensor:
        return gated_linear(rows, weight, "silu") if is_gated else logits(rows, weight)

    with threads(1):
        alone = torch.cat([multiply(row[None]) for row in x])
    for num_threads in (1, 2):
        with threads(num_threads):
            for count in (1, 2, 3, 4, 5, 8, 16, 33, 300):
                assert torch.equal(multiply(x[:count]), alone[:count])
                assert torch.equal(multiply(x[-count:]), alone[-count:])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_threads", [1, 2, 5])
def test_rows_of_several_blocks_are_all_computed_whoever_takes_them(
    dtype: torch.dtype, num_threads: int
) -> None:
    """Three blocks, full to the last row, and shares that go over from one to the next."""
    rows = 96 * 4 // dtype.itemsize
    x, weight = random(rows, 2048, dtype=dtype), random(10 * 32 - 3, 2048, dtype=dtype, seed=1)
    packed = pack(weight)
    exact = x.double() @ weight.double().T

    with threads(num_threads):
        for _ in range(3):
            assert_rounded(logits(x, packed), exact, 2048)


@pytest.mark.parametrize("dtype", DTYPES)
def test_rows_may_lie_apart(dtype: torch.dtype) -> None:
    wide, weight = random(9, 3 * 64, dtype=dtype), pack(random(40, 64, dtype=dtype))
    middle = wide[:, 64:128]

    assert torch.equal(linear(middle, weight), linear(middle.contiguous(), weight))


def test_no_rows_give_no_rows() -> None:
    assert linear(torch.empty(0, 64), pack(torch.randn(40, 64))).shape == (0, 40)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, 5.66, 0.125])
def test_rows_of_a_table_are_looked_up_wherever_they_lie(
    dtype: torch.dtype, scale: float | None
) -> None:
    table, ids = random(100, 66, dtype=dtype), torch.tensor([3, 99, 0, 31, 32, 3, 64])

    expected = reference(ids, table, scale)

    assert torch.equal(embedding(ids, table, scale), expected)
    assert torch.equal(embedding(ids, pack(table), scale), expected)
    assert torch.equal(embedding(ids[:1], pack(table), scale), expected[:1])


def test_what_no_operator_multiplies_is_not_packed() -> None:
    assert can_pack(torch.empty(4, 5))
    assert not can_pack(torch.empty(4, 5, dtype=torch.bfloat16))  # odd
    assert not can_pack(torch.empty(4, 4, dtype=torch.float16))
    assert not can_pack(torch.empty(4))
    assert not can_pack(torch.empty(4, 4, device="meta"))


def test_products_that_do_not_fit_are_refused() -> None:
    weight: PackedWeight = pack(torch.randn(8, 6))

    with pytest.raises(ValueError, match="of width 6 takes rows of those"):
        linear(torch.randn(2, 5), weight)
    with pytest.raises(ValueError, match="takes rows of those"):
        linear(torch.randn(2, 6).bfloat16(), weight)
    with pytest.raises(ValueError, match="a bias of 8"):
        linear(torch.randn(2, 6), weight, torch.randn(6))
    with pytest.raises(ValueError, match="gates among the rows"):
        gated_linear(torch.randn(2, 6), weight, "silu")
