"""Mixtures of experts on a GPU, from logits to what comes out, against the definition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import ModuleType
from typing import Any

import pytest
import torch
from tests.kernels.experts.test_grouped_quantized_gpu import WAYS
from tests.kernels.experts.test_moe import make_shared, make_weights, random
from tests.kernels.experts.test_routing import SHAPES, assert_as_defined, logits_of
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu

from baton.kernels.experts import grouped_linear_gpu, grouped_quantized_gpu
from baton.kernels.experts.moe import Gating, moe, reference
from baton.kernels.experts.quantized_experts import QuantizedExperts, empty_like
from baton.kernels.experts.routing import (
    ExpertGroups,
    Routed,
    Routing,
    Score,
    route,
    routed_to,
    router_logits,
)
from baton.kernels.experts.routing import reference as chosen

SMALL_GROUPS = 12, 5, ExpertGroups(num_groups=4, num_chosen=2, num_best=2)
CHOICES = [
    ("small groups by two", Score.SIGMOID, True),
    ("groups by the best", Score.SOFTMAX, False),
    ("odd", Score.SOFTMAX_OF_CHOSEN, True),
    ("few", Score.SIGMOID_OF_CHOSEN, False),
    ("one", Score.ROOT_OF_SOFTPLUS, True),
]


@pytest.mark.parametrize(("shape", "score", "has_biases"), CHOICES)
def test_experts_are_chosen_and_their_pairs_sorted_as_defined(
    shape: str, score: Score, has_biases: bool
) -> None:
    num_experts, num_choices, groups = SHAPES.get(shape, SMALL_GROUPS)
    routing = Routing(
        num_experts=num_experts,
        num_choices=num_choices,
        score=score,
        is_normalised=has_biases,
        scale=2.5,
        groups=groups,
    )
    logits = logits_of(9, num_experts)
    logits[3] = logits[3].round()  # of equals the lower number
    bias, correction = logits_of(2, num_experts, seed=1) / 20 if has_biases else (None, None)

    with tensors_on_a_gpu():
        found = route(logits, routing, bias=bias, correction=correction)

    assert_as_defined(
        found, num_experts, *chosen(logits, routing, bias=bias, correction=correction)
    )


def test_what_is_no_number_chooses_experts_that_there_are() -> None:
    groups = ExpertGroups(num_groups=2, num_chosen=1, num_best=2)
    routing = Routing(num_experts=6, num_choices=3, groups=groups)
    logits = logits_of(2, 6)
    logits[0, 4] = torch.nan

    with tensors_on_a_gpu():
        found = route(logits, routing)

    assert found.shares[0].isnan().all()
    assert all(len(set(row)) == 3 and set(row) < set(range(6)) for row in found.experts.tolist())
    assert sorted(found.pairs.flatten().tolist()) == list(range(6))


def test_logits_of_a_router_are_not_rounded() -> None:
    x, weight = random(3, 200, dtype=torch.bfloat16), random(5, 200, dtype=torch.bfloat16)

    with tensors_on_a_gpu():
        found = router_logits(x, weight)

    torch.testing.assert_close(found, x.float() @ weight.float().T, rtol=1e-5, atol=1e-5)


def some_are_others(routed: Routed, num_own: int) -> Routed:
    """The last experts are of other ranks."""
    own = routed.experts.clamp(max=num_own)
    return replace(routed_to(own, routed.shares, num_own), is_partial=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("is_input_scaled", [False, True])
def test_a_mixture_is_what_single_tokens_give(dtype: torch.dtype, is_input_scaled: bool) -> None:
    shape = num_tokens, width, _, num_experts, num_choices = 9, 72, 40, 5, 3
    x = random(num_tokens, width, dtype=dtype) * 4
    gating = Gating(activation="clamped_swiglu") if is_input_scaled else Gating()
    weights = make_weights(
        shape, dtype=dtype, gating=gating, has_bias=True, is_input_scaled=is_input_scaled
    )
    shared = make_shared(shape, dtype, has_gate=is_input_scaled)
    routing = Routing(num_experts=num_experts, num_choices=num_choices)
    routed = route(4 * random(num_tokens, num_experts), routing)
    wanted = reference(x, weights, routed, shared)

    with tensors_on_a_gpu():
        found = moe(x, weights, routed, shared)

    tolerance = 1e-5 if dtype is torch.float32 else 4e-2
    torch.testing.assert_close(found, wanted, rtol=tolerance, atol=tolerance)


@pytest.mark.filterwarnings("ignore:overflow")  # in what nobody computed
def test_pairs_of_other_ranks_give_nothing() -> None:
    shape = num_tokens, width, _, num_experts, _ = 9, 72, 40, 5, 3
    x, weights = random(num_tokens, width) * 4, make_weights(shape, has_bias=True)
    logits = 4 * random(num_tokens, num_experts)
    routed = route(logits, Routing(num_experts=num_experts, num_choices=3))
    own = replace(
        weights,
        gate_up=weights.gate_up[:2],  # type: ignore[index]
        down=weights.down[:2],  # type: ignore[index]
        gate_up_bias=weights.gate_up_bias[:2],  # type: ignore[index]
        down_bias=weights.down_bias[:2],  # type: ignore[index]
    )
    is_own = routed.experts < 2
    of_own = replace(routed, shares=routed.shares * is_own)

    others = some_are_others(routed, 2)
    torch.use_deterministic_algorithms(True)  # memory that nobody writes is NaN
    try:
        with tensors_on_a_gpu():
            found = moe(x, own, others)
    finally:
        torch.use_deterministic_algorithms(False)

    torch.testing.assert_close(found, reference(x, weights, of_own), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("is_input_scaled", [False, True])
@pytest.mark.parametrize("way", ["fp4", "fp8 blocks"])
def test_experts_in_few_bits_give_what_they_stand_for(way: str, is_input_scaled: bool) -> None:
    shape = num_tokens, width, hidden, num_experts, _ = 7, 128, 128, 3, 2
    plain = make_weights(shape, has_bias=True, is_input_scaled=is_input_scaled)
    stacks = [stacked(stack, way) for stack in (plain.gate_up, plain.down)]
    x = random(num_tokens, width) * 4
    routed = route(4 * random(num_tokens, num_experts), Routing(num_experts=3, num_choices=2))
    weights = replace(plain, gate_up=stacks[0], down=stacks[1])
    wanted = moe(x, weights, routed)

    with tensors_on_a_gpu():
        found = moe(x, weights, routed)

    torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-3)
    assert hidden == stacks[1].shape[2]


@pytest.mark.parametrize("way", [None, "fp8 blocks"])
def test_a_token_has_the_same_bits_beside_any_others_where_they_are_to_be_fixed(
    way: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Many pairs would else be in higher tiles than few, or a library's."""
    for module in (grouped_linear_gpu, grouped_quantized_gpu):
        monkeypatch.setattr(module, "FEW_ROWS", 4)
    monkeypatch.setattr(grouped_linear_gpu, "LIBRARY_ROWS", 8)
    monkeypatch.setattr(torch.nn.functional, "grouped_mm", None)
    heights: set[int] = set()
    for module in (grouped_linear_gpu, grouped_quantized_gpu):
        note_heights(monkeypatch, module, heights)
    shape = num_tokens, width, _, num_experts, num_choices = 12, 128, 128, 3, 2
    weights = make_weights(shape, dtype=torch.bfloat16)
    if way is not None:
        gate_up, down = (stacked(stack, way) for stack in (weights.gate_up, weights.down))
        weights = replace(weights, gate_up=gate_up, down=down)
    weights = replace(weights, is_batch_invariant=True)
    routing = Routing(num_experts=num_experts, num_choices=num_choices)
    x, logits = random(num_tokens, width, dtype=torch.bfloat16), random(num_tokens, num_experts)

    with tensors_on_a_gpu():
        together = moe(x, weights, route(logits, routing))
        alone = moe(x[5:6], weights, route(logits[5:6], routing))

    assert torch.equal(alone[0], together[5])
    assert len(heights) == 1


def note_heights(monkeypatch: pytest.MonkeyPatch, module: ModuleType, heights: set[int]) -> None:
    """Of the tiles that a module's products are launched with."""
    kernel = module._multiply

    class Noting:
        def __getitem__(self, grid: object) -> Callable[..., None]:
            def launch(*arguments: object, **options: Any) -> None:
                heights.add(options["ROWS"])
                kernel[grid](*arguments, **options)

            return launch

    monkeypatch.setattr(module, "_multiply", Noting())


def stacked(matrices: object, way: str) -> QuantizedExperts:
    """Experts that are kept in few bits."""
    assert isinstance(matrices, torch.Tensor)
    each = [WAYS[way](matrix) for matrix in matrices]
    kept = empty_like(len(each), each[0], "cpu")
    for expert, quantized in enumerate(each):
        kept.put(expert, quantized)
    return kept
