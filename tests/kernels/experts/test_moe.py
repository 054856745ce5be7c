"""Products by experts, in groups and compiled, against experts one token at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from tests.torch_threads import threads
from torch import Tensor

from baton.kernels.cpu import operators
from baton.kernels.cpu.library import library
from baton.kernels.experts import packed_experts
from baton.kernels.experts import packed_quantized_experts as packed_quantized_experts
from baton.kernels.experts.moe import (
    SWIGLU,
    ExpertWeight,
    ExpertWeights,
    Gating,
    Shared,
    grouped_linear,
    moe,
    reference,
)
from baton.kernels.experts.routing import Routed, Routing, route, routed_to

compiled = pytest.mark.skipif(library() is None, reason="no compiled operators here")
KINDS = [pytest.param("packed", marks=compiled), "plain"]
SHAPES = {
    "odd": (7, 20, 12, 5, 2),
    "one token": (1, 32, 16, 3, 1),
    "wide": (40, 100, 52, 6, 3),
    "many pairs of few experts": (300, 64, 48, 2, 2),
}
"""Tokens, width, feed-forward width, experts, choices."""


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with threads(request.param):
        yield request.param


def random(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    generator = torch.Generator().manual_seed(sum(shape))
    numbers: Tensor = torch.randn(*shape, generator=generator) / shape[-1] ** 0.5
    return numbers.to(dtype)


def make_weights(
    shape: tuple[int, ...],
    *,
    dtype: torch.dtype = torch.float32,
    gating: Gating = SWIGLU,
    has_bias: bool = False,
    is_input_scaled: bool = False,
) -> ExpertWeights:
    _, width, hidden, num_experts, _ = shape
    return ExpertWeights(
        gate_up=random(num_experts, 2 * hidden, width, dtype=dtype),
        down=random(num_experts, width, hidden, dtype=dtype),
        gate_up_bias=random(num_experts, 2 * hidden, dtype=dtype) if has_bias else None,
        down_bias=random(num_experts, width, dtype=dtype) if has_bias else None,
        gating=gating,
        is_input_scaled=is_input_scaled,
    )


def kept(weights: ExpertWeights, kind: str) -> ExpertWeights:
    def keep(weight: ExpertWeight, *, is_gated: bool) -> ExpertWeight:
        if kind == "plain":
            return weight
        assert isinstance(weight, Tensor)
        packed = packed_experts.empty(weight.shape, weight.dtype, is_gated=is_gated)
        for expert, matrix in enumerate(weight):
            packed.put(expert, matrix)
        return packed

    return replace(
        weights,
        gate_up=keep(weights.gate_up, is_gated=True),
        down=keep(weights.down, is_gated=False),
    )


def kept_quantized(weights: ExpertWeights, way: str) -> ExpertWeights:
    def keep(weight: ExpertWeight, *, is_gated: bool) -> ExpertWeight:
        assert isinstance(weight, Tensor)
        kept = packed_quantized_experts.empty(way, weight.shape, weight.dtype, is_gated=is_gated)
        for expert, matrix in enumerate(weight):
            kept.put(expert, matrix)
        return kept

    return replace(
        weights,
        gate_up=keep(weights.gate_up, is_gated=True),
        down=keep(weights.down, is_gated=False),
    )


def make_routed(shape: tuple[int, ...]) -> Routed:
    num_tokens, _, _, num_experts, num_choices = shape
    routing = Routing(num_experts=num_experts, num_choices=num_choices)
    return route(4 * random(num_tokens, num_experts), routing)


def make_shared(shape: tuple[int, ...], dtype: torch.dtype, *, has_gate: bool) -> Shared:
    num_tokens, width, *_ = shape
    gate = random(num_tokens, 1, dtype=dtype) if has_gate else None
    return Shared(random(num_tokens, width, dtype=dtype), gate)


@contextmanager
def without_operators() -> Iterator[None]:
    with patch.object(operators, "library", return_value=None):
        yield


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize(
    "gating",
    [
        Gating(),
        Gating(activation="gelu_pytorch_tanh"),
        Gating(activation="clamped_swiglu", alpha=1.3, limit=0.2),
    ],
    ids=lambda gating: gating.activation,
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_all_tokens_at_once_give_what_single_ones_give(
    kind: str, shape: tuple[int, ...], gating: Gating, dtype: torch.dtype, num_threads: int
) -> None:
    x, routed = random(shape[0], shape[1], dtype=dtype) * 4, make_routed(shape)
    weights = make_weights(shape, dtype=dtype, gating=gating, has_bias=True)

    found = moe(x, kept(weights, kind), routed)

    tolerance = 1e-5 if dtype is torch.float32 else 2e-2
    wanted = reference(x, weights, routed)
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pass_without_outputs_gives_none(kind: str) -> None:
    shape = (0, *SHAPES["wide"][1:])
    weights, shared = make_weights(shape), make_shared(shape, torch.float32, has_gate=True)

    assert (
        moe(random(*shape[:2]), kept(weights, kind), make_routed(shape), shared).shape == shape[:2]
    )


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("has_gate", [False, True])
@pytest.mark.parametrize("is_input_scaled", [False, True])
def test_what_all_tokens_get_is_added(kind: str, has_gate: bool, is_input_scaled: bool) -> None:
    shape = SHAPES["wide"]
    x, routed = random(shape[0], shape[1]), make_routed(shape)
    shared = make_shared(shape, torch.float32, has_gate=has_gate)
    weights = make_weights(shape, is_input_scaled=is_input_scaled)

    found = moe(x, kept(weights, kind), routed, shared)

    wanted = reference(x, weights, routed, shared)
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)
    assert not torch.allclose(found, moe(x, kept(weights, kind), routed))


@pytest.mark.parametrize(
    ("is_input_scaled", "wanted"), [(False, [0.5 * 1.0, 0.25 * 16.0]), (True, [0.25, 1.0])]
)
def test_a_share_multiplies_what_comes_out_or_what_goes_in(
    is_input_scaled: bool, wanted: list[float]
) -> None:
    """One expert, x -> up(x) * silu(gate(x)), where the gate is large enough to let all through."""
    gate_up, down = torch.tensor([[[100.0], [0.01]]]), torch.ones(1, 1, 1)
    x, shares = torch.tensor([[1.0], [4.0]]), torch.tensor([[0.5], [0.25]])
    routed = routed_to(torch.zeros(2, 1, dtype=torch.int64), shares, 1)
    weights = ExpertWeights(gate_up=gate_up, down=down, is_input_scaled=is_input_scaled)

    assert moe(x, weights, routed).flatten().tolist() == pytest.approx(wanted)


@compiled
@pytest.mark.parametrize("way", ["int8", "int4"])
@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("is_input_scaled", [False, True])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_few_bits_are_multiplied_as_torch_multiplies_what_they_mean(
    way: str, shape: tuple[int, ...], is_input_scaled: bool, dtype: torch.dtype
) -> None:
    x, routed = random(shape[0], shape[1], dtype=dtype) * 4, make_routed(shape)
    shared = make_shared(shape, dtype, has_gate=True)
    weights = make_weights(shape, dtype=dtype, has_bias=True, is_input_scaled=is_input_scaled)
    quantized = kept_quantized(weights, way)

    found = moe(x, quantized, routed, shared)

    with without_operators():
        wanted = moe(x, quantized, routed, shared)
    torch.testing.assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    exact = reference(x, weights, routed, shared)
    bound = 0.02 if way == "int8" else 0.2
    assert (found - exact).float().norm() < bound * exact.float().norm()


@compiled
@pytest.mark.parametrize("way", ["packed", "int8", "int4"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_token_has_the_same_bits_in_any_company(
    way: str, dtype: torch.dtype, num_threads: int
) -> None:
    shape = 150, 96, 80, 4, 2
    x, routed = random(150, 96, dtype=dtype), make_routed(shape)
    shared = make_shared(shape, dtype, has_gate=True)
    assert shared.gate is not None
    plain = make_weights(shape, dtype=dtype, has_bias=True)
    weights = kept(plain, way) if way == "packed" else kept_quantized(plain, way)

    together = moe(x, weights, routed, shared)

    for some in (slice(0, 1), slice(7, 20), slice(100, 150)):
        choice = routed_to(routed.experts[some], routed.shares[some], 4)
        beside = Shared(shared.out[some], shared.gate[some])
        assert torch.equal(moe(x[some], weights, choice, beside), together[some])


@compiled
def test_an_expert_that_is_put_is_the_one_that_is_unpacked() -> None:
    stack = random(3, 40, 22)
    packed = packed_experts.empty(stack.shape, stack.dtype, is_gated=True)

    for expert in (2, 0, 1):
        packed.put(expert, stack[expert])

    assert packed.shape == (3, 40, 22)
    assert all(torch.equal(packed.to_dense(e), stack[e]) for e in range(3))
    with pytest.raises(ValueError, match="no expert of"):
        packed.put(0, stack[0].T)


def test_shapes_that_do_not_fit_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        grouped_linear(random(3, 8), random(2, 4, 9), torch.tensor([1, 3], dtype=torch.int32))
    with pytest.raises(ValueError, match="2 experts"):
        grouped_linear(random(3, 8), random(2, 4, 8), torch.tensor([1, 2, 3], dtype=torch.int32))
    shape = SHAPES["odd"]
    with pytest.raises(ValueError, match="do not fit"):
        moe(random(7, 21), make_weights(shape), make_routed(shape))
    with pytest.raises(ValueError, match="do not fit"):
        moe(random(6, 20), make_weights(shape), make_routed(shape))
