"""Norms, gates and angles against their definitions: interpreted, and on a device if there is one.

Odd widths, one row, several leading dimensions.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from baton.kernels.elementwise import clamped_swiglu, gelu, silu_mul
from baton.kernels.elementwise import gates_gpu as gate
from baton.kernels.positions import rotary_angles
from baton.kernels.positions import rotary_angles_gpu as angles_on_gpu
from baton.kernels.residual import layer_norm, rms_norm
from baton.kernels.residual.layer_norm_gpu import layer_norm as layer_norm_on_gpu
from baton.kernels.residual.rms_norm_gpu import rms_norm as rms_norm_on_gpu
from baton.kernels.sampling import best_token_gpu as best_token
from baton.kernels.sampling.best_token_gpu import CHUNK

SHAPES = [(3, 100), (1, 64), (2, 3, 8)]
BFLOAT16 = torch.bfloat16
TOLERANCE = {torch.float32: 2e-6, BFLOAT16: 2**-6}
"""The interpreter cuts off where a device rounds."""

each_shape = pytest.mark.parametrize("shape", SHAPES, ids=str)
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, BFLOAT16])


def numbers(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape))).to(dtype)


def assert_near(found: Tensor, expected: Tensor) -> None:
    tolerance = TOLERANCE[expected.dtype]
    torch.testing.assert_close(found.cpu(), expected, rtol=tolerance, atol=tolerance)


@each_shape
@each_dtype
def test_rms_norm_after_an_addition(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, residual, weight = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype), numbers(8)
    weight = numbers(shape[-1], dtype=dtype)
    expected_y, expected_s = rms_norm.reference(x, residual, weight, 1e-6)

    y, s = rms_norm_on_gpu(x, residual, weight, 1e-6)

    assert_near(y, expected_y)
    assert_near(s, expected_s)


def test_rms_norm_alone_of_heads_with_a_wide_weight() -> None:
    x, weight = numbers(5, 3, 8, dtype=BFLOAT16)[:, 1:], numbers(8)
    expected, _ = rms_norm.reference(x, torch.zeros_like(x), weight, 1e-6)

    y, s = rms_norm_on_gpu(x, None, weight, 1e-6)

    assert_near(y, expected)
    assert s is x


def test_of_equal_tokens_the_first_is_the_best_and_what_is_no_number_is_told() -> None:
    scores = torch.zeros(2, CHUNK + 100)
    scores[0, [7, 60, CHUNK + 5]] = 3
    scores[1, CHUNK + 9] = float("nan")

    tokens, are_finite = best_token.best_finite_token(scores)

    assert (tokens.tolist(), are_finite.tolist()) == ([7, 0], [True, False])


@each_shape
@each_dtype
def test_layer_norm_after_an_addition(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, residual = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype)
    weight, bias = numbers(shape[-1], dtype=dtype), numbers(shape[-1], dtype=dtype) * 2
    expected_y, expected_s = layer_norm.reference(x, residual, weight, bias, 1e-5)

    y, s = layer_norm_on_gpu(x, residual, weight, bias, 1e-5)

    assert_near(y, expected_y)
    assert_near(s, expected_s)


@each_shape
@each_dtype
def test_gates(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    gate_up = numbers(*shape, dtype=dtype) * 3
    gates, up = gate_up.float().chunk(2, dim=-1)
    by_gelu = (gelu.reference_tanh(gates) * up).to(dtype)

    if gate_up.dim() == 2:
        by_limit = clamped_swiglu.reference(gate_up.float(), 1.7, 2.0, 1.0).to(dtype)
        assert_near(gate.clamped_swiglu(gate_up, 1.7, 2.0, 1.0), by_limit)
    assert_near(gate.silu_mul(gate_up), silu_mul.reference(gate_up))
    assert_near(gate.gelu_tanh_mul(gate_up), by_gelu)


@pytest.mark.filterwarnings("ignore:overflow")
def test_gates_that_are_shut_and_wide_open() -> None:
    gate_up = torch.tensor([[-1000.0, 1000, 0, 2, 2, 2]])

    assert torch.equal(gate.silu_mul(gate_up), torch.tensor([[0.0, 2000, 0]]))
    assert torch.equal(gate.gelu_tanh_mul(gate_up), torch.tensor([[0.0, 2000, 0]]))


def test_angles_of_early_and_late_positions() -> None:
    positions, frequencies = torch.tensor([0, 1, 5, 1000, 1_000_000]), torch.rand(5)
    expected = rotary_angles.reference(positions, frequencies, 1.5)

    found = angles_on_gpu.rotary_angles(positions, frequencies, 1.5)

    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)


@pytest.mark.gpu
@each_shape
@each_dtype
def test_public_functions_on_a_device(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    x, residual = numbers(*shape, dtype=dtype), numbers(*shape, dtype=dtype) * 2
    weight, bias = numbers(shape[-1], dtype=dtype), numbers(shape[-1], dtype=dtype) * 2
    a, b, w, c = (tensor.cuda() for tensor in (x, residual, weight, bias))

    for found, expected in zip(
        (
            *rms_norm.add_rms_norm(a, b, w, 1e-6),
            *layer_norm.add_layer_norm(a, b, w, c, 1e-5),
            silu_mul.silu_mul(a),
            rms_norm.rms_norm(a, w, 1e-6),
        ),
        (
            *rms_norm.reference(x, residual, weight, 1e-6),
            *layer_norm.reference(x, residual, weight, bias, 1e-5),
            silu_mul.reference(x),
            rms_norm.reference(x, torch.zeros_like(x), weight, 1e-6)[0],
        ),
        strict=True,
    ):
        assert_near(found, expected)


@pytest.mark.gpu
def test_angles_on_a_device() -> None:
    positions, frequencies = torch.tensor([0, 1, 5, 1000, 1_000_000]), torch.rand(64)
    expected = rotary_angles.reference(positions, frequencies, 1.5)

    found = rotary_angles.rotary_angles(positions.cuda(), frequencies.cuda(), 1.5)

    for one, other in zip(found, expected, strict=True):
        assert_near(one, other)
