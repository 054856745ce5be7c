"""The choice of experts: compiled against its definition, and the definition against examples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from tests.torch_threads import threads
from torch import Tensor

from baton.kernels.cpu.library import library
from baton.kernels.experts.routing import (
    ExpertGroups,
    Routed,
    Routing,
    Score,
    reference,
    route,
    routed_to,
)

HALVES = ExpertGroups(num_groups=2, num_chosen=1)
SHAPES = {
    "few": (3, 2, None),
    "one": (1, 1, None),
    "many": (128, 8, None),
    "odd": (100, 5, None),
    "groups by the best": (160, 6, ExpertGroups(num_groups=8, num_chosen=3)),
    "groups by two": (256, 8, ExpertGroups(num_groups=8, num_chosen=4, num_best=2)),
}


def logits_of(num_rows: int, num_experts: int, seed: int = 0) -> Tensor:
    return 3 * torch.randn(num_rows, num_experts, generator=torch.Generator().manual_seed(seed))


def assert_as_defined(found: Routed, num_experts: int, experts: Tensor, shares: Tensor) -> None:
    wanted = routed_to(experts, shares, num_experts)
    assert torch.equal(found.experts, wanted.experts)
    assert torch.equal(found.pairs, wanted.pairs)
    assert torch.equal(found.stops, wanted.stops)
    torch.testing.assert_close(found.shares, wanted.shares, rtol=1e-5, atol=1e-7)


@pytest.fixture(params=[1, 2])
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with threads(request.param):
        yield request.param


@pytest.mark.skipif(library() is None, reason="no compiled operators here")
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("score", Score)
@pytest.mark.parametrize("has_biases", [False, True])
def test_operators_choose_what_the_definition_chooses(
    shape: str, score: Score, has_biases: bool, num_threads: int
) -> None:
    num_experts, num_choices, groups = SHAPES[shape]
    bias, correction = logits_of(2, num_experts, seed=1) if has_biases else (None, None)
    logits = logits_of(70, num_experts)
    for is_normalised in (False, True):
        routing = Routing(
            num_experts=num_experts,
            num_choices=num_choices,
            score=score,
            is_normalised=is_normalised,
            scale=2.5,
            groups=groups,
        )

        found = route(logits, routing, bias=bias, correction=correction)

        assert_as_defined(
            found, num_experts, *reference(logits, routing, bias=bias, correction=correction)
        )


@pytest.mark.parametrize("score", Score)
def test_a_token_chooses_alike_in_any_company(score: Score) -> None:
    routing = Routing(num_experts=40, num_choices=4, score=score, is_normalised=True)
    logits = logits_of(33, 40)

    together = route(logits, routing)
    alone = [route(logits[t : t + 1], routing) for t in range(33)]

    assert torch.equal(together.experts, torch.cat([one.experts for one in alone]))
    assert torch.equal(together.shares, torch.cat([one.shares for one in alone]))


def test_of_equals_the_lower_number_is_chosen() -> None:
    logits = torch.zeros(2, 8)
    logits[1, [2, 5, 7]] = 1.0

    routed = route(logits, Routing(num_experts=8, num_choices=2))

    assert routed.experts.tolist() == [[0, 1], [2, 5]]


def test_of_equal_groups_the_lower_numbers_are_chosen() -> None:
    groups = ExpertGroups(num_groups=4, num_chosen=2)
    logits = torch.tensor([[0.0, 1, 1, 0, 0, 1, 0, 0]])

    routed = route(logits, Routing(num_experts=8, num_choices=3, groups=groups))

    assert routed.experts.tolist() == [[1, 2, 0]]


def test_pairs_are_in_the_order_of_experts_and_then_of_tokens() -> None:
    experts = torch.tensor([[3, 0], [1, 3], [0, 3]])

    routed = routed_to(experts, torch.ones(3, 2), 5)

    assert routed.pairs.flatten().tolist() == [1, 4, 2, 0, 3, 5]
    assert routed.stops.tolist() == [2, 3, 3, 6, 6]


def test_a_correction_joins_the_choice_and_not_the_share() -> None:
    logits, correction = torch.tensor([[2.0, 1.0, 0.0]]), torch.tensor([0.0, 0.0, 1.0])
    routing = Routing(num_experts=3, num_choices=1, score=Score.SIGMOID)

    routed = route(logits, routing, correction=correction)

    assert routed.experts.tolist() == [[2]]
    assert routed.shares.tolist() == [[0.5]]


@pytest.mark.parametrize(("num_best", "chosen"), [(1, [3, 2]), (2, [0, 1])])
def test_only_experts_of_the_best_groups_are_chosen(num_best: int, chosen: list[int]) -> None:
    logits = torch.tensor([[2.0, 1.9, -3.0, 2.1]])
    groups = ExpertGroups(num_groups=2, num_chosen=1, num_best=num_best)
    routing = Routing(num_experts=4, num_choices=2, score=Score.SIGMOID, groups=groups)

    assert route(logits, routing).experts.tolist() == [chosen]


def test_a_pass_without_outputs_asks_no_expert() -> None:
    routing = Routing(num_experts=4, num_choices=2, score=Score.SIGMOID, groups=HALVES)
    nothing = logits_of(0, 4)

    experts, _ = reference(nothing, routing)
    assert experts.shape == route(nothing, routing).experts.shape == (0, 2)


def test_a_token_of_nan_has_shares_of_nan_and_experts_that_there_are() -> None:
    logits = logits_of(3, 20)
    logits[1] = torch.nan

    routed = route(logits, Routing(num_experts=20, num_choices=3))

    assert routed.shares.isnan().tolist() == [[False] * 3, [True] * 3, [False] * 3]
    assert all(len(set(row)) == 3 and max(row) < 20 for row in routed.experts.tolist())
    assert routed.stops[-1] == 9


@pytest.mark.parametrize(
    ("num_choices", "groups"),
    [
        (5, None),
        (0, None),
        (3, HALVES),
        (1, ExpertGroups(num_groups=3, num_chosen=1)),
        (1, ExpertGroups(num_groups=2, num_chosen=3)),
        (1, ExpertGroups(num_groups=4, num_chosen=1, num_best=2)),
    ],
)
def test_a_routing_that_could_not_choose_is_refused(
    num_choices: int, groups: ExpertGroups | None
) -> None:
    with pytest.raises(ValueError, match="experts"):
        Routing(num_experts=4, num_choices=num_choices, groups=groups)


def test_logits_of_another_shape_or_dtype_are_refused() -> None:
    routing = Routing(num_experts=4, num_choices=2)

    with pytest.raises(ValueError, match="4 experts"):
        route(torch.zeros(3, 5), routing)
    with pytest.raises(ValueError, match="float32"):
        route(torch.zeros(3, 4, dtype=torch.bfloat16), routing)
    with pytest.raises(ValueError, match="one for each"):
        route(torch.zeros(3, 4), routing, bias=torch.zeros(3))
