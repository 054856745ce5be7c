"""Weights in eight and in four bits: how near they are, and products of what they stand for."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.torch_threads import threads
from torch import Tensor
from torch.nn import functional

from baton.kernels.cpu import operators
from baton.kernels.cpu.library import library
from baton.kernels.products import int4_weight, int8_rows, int8_weight
from baton.kernels.products.embedding import embedding
from baton.kernels.products.linear import gated_linear, linear, logits
from baton.kernels.products.packed_quantized_weight import PackedQuantizedWeight

Quantize = Callable[..., PackedQuantizedWeight]

QUANTIZERS: dict[str, Quantize] = {"int8": int8_weight.quantize, "int4": int4_weight.quantize}
DTYPES = (torch.float32, torch.bfloat16)
ROWS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 33, 257, 300)
SHAPES = ((100, 100), (32, 64), (1, 2), (17, 65), (47, 64), (259, 1024))
GATED_SHAPES = ((2, 32), (62, 64), (96, 100), (100, 64))
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "silu": functional.silu,
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
}


@pytest.fixture(params=sorted(QUANTIZERS))
def quantize(request: pytest.FixtureRequest) -> Quantize:
    return QUANTIZERS[request.param]


@pytest.fixture(params=["compiled", "torch"])
def means(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """By which means products are computed."""
    if request.param == "torch":
        monkeypatch.setattr(operators, "runs", lambda *tensors: False)
    elif library() is None:
        pytest.skip("there is no C++ compiler")
    return str(request.param)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


def values_of(weight: PackedQuantizedWeight) -> Tensor:
    """W [N, K] unrounded: what the numbers that are kept stand for."""
    return weight.rows(torch.arange(weight.shape[0])).double()


def values_of_rows(x: Tensor) -> Tensor:
    """What the activations stand for."""
    q, scales = int8_rows.reference(x)
    return q.double() * scales


def assert_rounded(found: Tensor, exact: Tensor) -> None:
    """As near as float32 sums of a few hundred terms of about 1, stored in the dtype of `found`."""
    errors = {torch.float32: 1e-5, torch.bfloat16: 2.0**-8}
    torch.testing.assert_close(found.double(), exact, rtol=errors[found.dtype], atol=2e-4)


@pytest.mark.parametrize("shape", SHAPES)
def test_eight_bits_are_off_by_half_a_step_of_their_row(shape: tuple[int, int], means: str) -> None:
    weight = random(*shape)
    step = weight.abs().amax(dim=1, keepdim=True) / 127
    error = (values_of(int8_weight.quantize(weight)) - weight).abs()
    assert (error <= step * 0.5001).all()


@pytest.mark.parametrize("shape", SHAPES)
def test_four_bits_are_off_by_half_a_step_of_their_group_or_one_where_they_are_cut_off(
    shape: tuple[int, int], means: str
) -> None:
    weight = random(*shape)
    groups = functional.pad(weight, (0, -shape[1] % 32)).view(shape[0], -1, 32)
    found = values_of(int4_weight.quantize(weight))
    error = (functional.pad(found, (0, -shape[1] % 32)).view_as(groups) - groups).abs()
    top, bottom = groups.amax(dim=-1, keepdim=True), groups.amin(dim=-1, keepdim=True)
    step = (torch.where(top > -bottom, top, bottom) / -8).to(torch.bfloat16).float()
    is_cut = groups / step > 7.5
    assert (error <= step.abs() * torch.where(is_cut, 1 + 1 / 32, 0.5001)).all()
    assert not is_cut.all()


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("is_gated", [False, True])
def test_compiled_packing_gives_the_bytes_of_the_reference(
    dtype: torch.dtype, is_gated: bool
) -> None:
    for rows, width in GATED_SHAPES if is_gated else SHAPES:
        weight = random(rows, width, dtype=dtype)
        weight[0] = 0
        eight = int8_weight.quantize(weight, is_gated=is_gated)
        packed, scales = int8_weight.reference(weight, is_gated)
        assert eight.scales is not None
        assert torch.equal(eight.packed, packed)
        assert torch.equal(eight.scales, scales)
        four = int4_weight.quantize(weight, is_gated=is_gated)
        assert torch.equal(four.packed, int4_weight.reference(weight, is_gated))


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_product_is_that_of_what_weights_and_activations_stand_for(
    quantize: Quantize, dtype: torch.dtype, shape: tuple[int, int], means: str
) -> None:
    outputs, width = shape
    weight = quantize(random(outputs, width, dtype=dtype))
    bias = random(outputs, dtype=dtype, seed=1)
    for rows in (1, 7, 33):
        x = random(rows, width, dtype=dtype, seed=rows)
        exact = values_of_rows(x) @ values_of(weight).T
        found = linear(x, weight, bias)
        assert found.dtype is dtype
        assert_rounded(found, exact + bias.double())
        assert_rounded(linear(x, weight), exact)
        assert_rounded(logits(x, weight), exact)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", GATED_SHAPES)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_gated_product_gates_what_the_second_half_gives(
    quantize: Quantize, dtype: torch.dtype, shape: tuple[int, int], activation: str, means: str
) -> None:
    outputs, width = shape
    weight = quantize(random(outputs, width, dtype=dtype) / 8, is_gated=True)
    bias = random(outputs, dtype=dtype, seed=1)
    x = random(9, width, dtype=dtype, seed=2)
    gate, up = (values_of_rows(x) @ values_of(weight).T + bias.double()).chunk(2, dim=1)
    found = gated_linear(x, weight, activation, bias)
    assert_rounded(found, ACTIVATIONS[activation](gate) * up)


def test_a_layer_is_as_near_to_the_exact_one_as_its_scales_say(quantize: Quantize) -> None:
    weight, x = random(64, 512), random(20, 512, seed=1)
    kept = quantize(weight)
    step = x.abs().amax(dim=1, keepdim=True).double() / 127
    of_weights = x.abs().double() @ (values_of(kept) - weight).abs().T
    of_activations = step / 2 * values_of(kept).abs().sum(dim=1)
    error = (linear(x, kept).double() - x.double() @ weight.double().T).abs()
    assert (error <= of_weights + of_activations + 1e-3).all()


@pytest.mark.skipif(library() is None, reason="there is no C++ compiler")
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("num_threads", [1, 2])
def test_a_row_gives_the_same_bits_whatever_is_computed_beside_it(
    quantize: Quantize, dtype: torch.dtype, num_threads: int
) -> None:
    weight = random(200, 333, dtype=dtype)
    kept, gated = quantize(weight), quantize(weight, is_gated=True)
    x = random(max(ROWS), 333, dtype=dtype, seed=1)
    with threads(1):
        one_by_one = [torch.cat([linear(row, kept) for row in x[:, None]])]
        one_by_one += [torch.cat([gated_linear(row, gated, "silu") for row in x[:, None]])]
    with threads(num_threads):
        for rows in ROWS:
            assert torch.equal(linear(x[:rows], kept), one_by_one[0][:rows])
            assert torch.equal(gated_linear(x[:rows], gated, "silu"), one_by_one[1][:rows])


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("scale", [None, 5.7])
def test_looking_up_a_token_gives_its_row_of_the_weight(
    quantize: Quantize, dtype: torch.dtype, scale: float | None, means: str
) -> None:
    table = quantize(random(259, 100, dtype=dtype))
    ids = torch.tensor([258, 0, 31, 32, 0])
    expected = table.to_dense()[ids]
    if scale is not None:
        expected = expected * torch.tensor(scale, dtype=dtype)
    assert torch.equal(embedding(ids, table, scale), expected)


@pytest.mark.parametrize("wrong", [float("nan"), float("inf"), float("-inf")])
def test_a_row_that_is_not_finite_becomes_nan_and_no_other(
    quantize: Quantize, wrong: float, means: str
) -> None:
    kept, x = quantize(random(40, 64)), random(3, 64, seed=1)
    whole = linear(x, kept)
    x[1, 5] = wrong
    found = linear(x, kept)
    assert found[1].isnan().all()
    torch.testing.assert_close(found[[0, 2]], whole[[0, 2]])


def test_a_row_of_zeros_gives_the_bias(quantize: Quantize, means: str) -> None:
    bias = random(40, seed=1)
    assert torch.equal(linear(torch.zeros(1, 64), quantize(random(40, 64)), bias), bias[None])


def test_a_weight_is_half_or_a_quarter_of_its_size_in_sixteen_bits() -> None:
    weight = random(256, 1024, dtype=torch.bfloat16)
    assert int8_weight.quantize(weight).nbytes == weight.nbytes // 2 + 4 * 256
    assert int4_weight.quantize(weight).nbytes == weight.nbytes * 4.5 / 16


def test_what_does_not_fit_is_refused(quantize: Quantize) -> None:
    plain, gated = quantize(random(64, 32)), quantize(random(64, 32), is_gated=True)
    x = random(2, 32)
    with pytest.raises(ValueError, match="gates"):
        linear(x, gated)
    with pytest.raises(ValueError, match="gates"):
        gated_linear(x, plain, "silu")
    if library() is not None:
        with pytest.raises(ValueError, match="width 32"):
            linear(random(2, 31), plain)
        with pytest.raises(ValueError, match="bias"):
            linear(x, plain, random(63))
