"""The small operators: against their definitions, the functions they are made of in float64, and
always the same bits for a row."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from baton.kernels.cpu.library import library
from baton.kernels.elementwise.add import add
from baton.kernels.elementwise.gelu import gelu, gelu_tanh, gelu_tanh_mul
from baton.kernels.elementwise.relu import reference as relu_reference
from baton.kernels.elementwise.relu import relu
from baton.kernels.elementwise.silu_mul import silu_mul
from baton.kernels.elementwise.soft_cap import reference as soft_cap_reference
from baton.kernels.elementwise.soft_cap import soft_cap_
from baton.kernels.elementwise.take_rows import take_rows
from baton.kernels.positions.rotary_angles import rotary_angles
from baton.kernels.residual.layer_norm import add_layer_norm
from baton.kernels.residual.layer_norm import reference as layer_norm_reference
from baton.kernels.residual.rms_norm import add_rms_norm
from baton.kernels.residual.rms_norm import reference as rms_norm_reference

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled operators here")

DTYPES = (torch.float32, torch.bfloat16)
WIDTHS = (1, 16, 100, 1024)
EPS = 2.0**-24
"""Half the distance between neighbours in float32, at 1."""


def rows(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def assert_near(found: tuple[Tensor, Tensor], expected: tuple[Tensor, Tensor]) -> None:
    tolerance = 2e-6 if expected[0].dtype is torch.float32 else 1e-2
    torch.testing.assert_close(found, expected, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("weight_dtype", [None, torch.float32])
@pytest.mark.parametrize("width", WIDTHS)
def test_norms_are_as_defined(
    width: int, weight_dtype: torch.dtype | None, dtype: torch.dtype
) -> None:
    x, residual = rows(7, width, dtype=dtype), rows(7, width, dtype=dtype) * 3
    weight, bias = (rows(n, width)[0].to(weight_dtype or dtype) for n in (1, 2))

    assert_near(
        add_rms_norm(x, residual, weight, 1e-5), rms_norm_reference(x, residual, weight, 1e-5)
    )
    assert_near(
        add_layer_norm(x, residual, weight, bias, 1e-5),
        layer_norm_reference(x, residual, weight, bias, 1e-5),
    )


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (5, 100), (300, 48)])
def test_sums_rectified_and_taken_rows_are_exact(
    shape: tuple[int, int], dtype: torch.dtype
) -> None:
    x, y = rows(*shape, dtype=dtype), rows(*shape, dtype=dtype).flip(1)
    numbers = torch.arange(shape[0]).flip(0)[::2].contiguous()

    assert torch.equal(add(x, y), x + y)
    assert torch.equal(relu(x), relu_reference(x))
    assert torch.equal(take_rows(x, numbers), x[numbers])
    assert take_rows(x, numbers[:0]).shape == (0, shape[1])


def test_soft_caps_are_put_on_in_place() -> None:
    x = rows(3, 100) * 40
    expected = soft_cap_reference(x, 30.0)

    assert soft_cap_(x, 30.0) is x
    torch.testing.assert_close(x, expected, rtol=1e-6, atol=1e-6)


def arguments() -> Tensor:
    """Float32 numbers of all sizes, both signs: [N, 1000]"""
    small = torch.exp2(torch.linspace(-30, 8, 100_000))
    return torch.cat((small, -small, torch.linspace(-20, 20, 300_000))).view(-1, 1000)


FUNCTIONS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Tensor], Tensor]]] = {
    "tanh": (lambda x: soft_cap_(x.clone(), 1.0), torch.tanh),
    "gelu, by erf": (gelu, lambda x: x / 2 * (1 + torch.erf(x / math.sqrt(2)))),
    "gelu, by tanh": (
        gelu_tanh,
        lambda x: x / 2 * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
    "silu, by exp": (
        lambda x: silu_mul(torch.cat((x, torch.ones_like(x)), dim=1)),
        lambda x: x * torch.sigmoid(x),
    ),
    "gelu of a gate": (
        lambda x: gelu_tanh_mul(torch.cat((x, torch.full_like(x, 2.0)), dim=1)),
        lambda x: x * (1 + torch.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))),
    ),
}


@pytest.mark.parametrize("name", list(FUNCTIONS))
def test_functions_are_within_a_few_units_in_the_last_place(name: str) -> None:
    """Of the result, or of the argument, which the activations are a fraction of."""
    function, exact = FUNCTIONS[name]
    x = arguments()

    y = function(x)

    scale = exact(x.double()).abs() if name == "tanh" else x.double().abs()
    error = (y.double() - exact(x.double())).abs() / scale
    assert error.max() < 4 * EPS
    assert not y.isnan().any()


@pytest.mark.parametrize("function", [gelu, gelu_tanh, lambda x: soft_cap_(x, 5.0)])
def test_what_is_not_a_number_stays_so(function: Callable[[Tensor], Tensor]) -> None:
    assert function(torch.tensor([[1.0, math.nan, 2.0]])).isnan().tolist() == [[False, True, False]]


def test_angles_of_a_million_tokens_are_reduced_exactly() -> None:
    positions = torch.cat((torch.arange(5000), torch.arange(999_000, 1_000_001)))
    frequencies = 10_000.0 ** -(torch.arange(0, 50, dtype=torch.float32) / 50)

    cos, sin = rotary_angles(positions, frequencies, 0.5)

    angles = torch.outer(positions.float(), frequencies).double()  # rounded, then exact
    assert (cos.double() - angles.cos() * 0.5).abs().max() < 2 * EPS
    assert (sin.double() - angles.sin() * 0.5).abs().max() < 2 * EPS


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("width", [100, 256])
def test_a_row_gives_the_same_bits_alone_and_among_others(width: int, dtype: torch.dtype) -> None:
    x, residual = rows(67, 2 * width, dtype=dtype), rows(67, 2 * width, dtype=dtype).flip(0)
    weight, bias = rows(2 * width, dtype=dtype), rows(2 * width, dtype=dtype)
    operators: list[Callable[[Tensor, Tensor], Tensor]] = [
        lambda x, r: add_rms_norm(x, r, weight, 1e-6)[0],
        lambda x, r: add_layer_norm(x, r, weight, bias, 1e-6)[0],
        lambda x, r: gelu(x),
        lambda x, r: silu_mul(x),
        lambda x, r: soft_cap_(x.float().clone(), 3.0),
    ]
    before = torch.get_num_threads()

    for operator in operators:
        alone = torch.cat([operator(x[i : i + 1], residual[i : i + 1]) for i in range(67)])
        for num_threads in (1, 2, 3):
            torch.set_num_threads(num_threads)
            together = operator(x, residual)
            torch.set_num_threads(before)
            assert torch.equal(together, alone)
