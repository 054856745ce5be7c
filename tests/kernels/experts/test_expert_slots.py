"""Pairs that ranks compute for each other: every pair by one rank, whatever else is in the pass."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from unittest.mock import patch

import pytest
import torch
from tests.kernels.experts.test_moe import compiled, kept, kept_quantized, make_weights, random
from torch import Tensor

from baton.engine.mesh.expert_map import ExpertMap, spread
from baton.engine.sharding.held_experts import tables
from baton.kernels.cpu import operators
from baton.kernels.experts.expert_slots import ExpertSlots, own_pairs, slot_of_pairs
from baton.kernels.experts.moe import ExpertWeights, moe
from baton.kernels.experts.routing import Routed, Routing, route, routed_to

MAPS = {
    "one copy each": spread(6, 3),
    "some twice": spread(6, 3, 1),
    "unequal": ExpertMap((0, 1, 2, 3, 0, 4, 5, 0, 0, 0, 1, 0), 6, 3),
    "all everywhere": spread(6, 3, 4),
}


def slots_of(where: ExpertMap, rank: int) -> ExpertSlots:
    starts, slots = tables(where)
    return ExpertSlots(
        starts=starts,
        slots=slots,
        first=rank * where.slots_per_rank,
        count=where.slots_per_rank,
        loads=torch.zeros(where.num_experts, dtype=torch.int64),
    )


def some_routed(num_tokens: int = 50, num_choices: int = 3) -> Routed:
    return route(2 * random(num_tokens, 6), Routing(num_experts=6, num_choices=num_choices))


@pytest.mark.parametrize("where", MAPS)
@pytest.mark.parametrize("num_tokens", [0, 1, 50])
@pytest.mark.parametrize("by", ["torch", pytest.param("operators", marks=compiled)])
def test_each_pair_is_for_one_rank_that_has_its_expert(
    where: str, num_tokens: int, by: str
) -> None:
    found, routed = MAPS[where], some_routed(num_tokens)
    wanted = slot_of_pairs(routed.experts, routed.shares, slots_of(found, 0))
    assert [found.experts[slot] for slot in wanted.flatten()] == routed.experts.flatten().tolist()

    for rank in range(found.num_ranks):
        slots = slots_of(found, rank)
        with patch.object(operators, "runs", return_value=by == "operators"):
            own = own_pairs(routed, slots)

        is_own = wanted // slots.count == rank
        expected = routed_to(
            torch.where(is_own, wanted - slots.first, slots.count), routed.shares, slots.count
        )
        assert own.is_partial
        for one, other in ((own.experts, expected.experts), (own.stops, expected.stops)):
            assert torch.equal(one, other)
        assert torch.equal(own.pairs, expected.pairs)
        assert slots.loads.tolist() == routed.stops.diff(prepend=torch.tensor([0])).tolist()


def test_the_copy_depends_on_the_pair_alone() -> None:
    slots, routed = slots_of(MAPS["unequal"], 0), some_routed()

    whole = slot_of_pairs(routed.experts, routed.shares, slots)
    some = slot_of_pairs(routed.experts[7:9], routed.shares[7:9], slots)

    assert torch.equal(whole[7:9], some)


def test_copies_get_like_numbers_of_pairs() -> None:
    slots = slots_of(MAPS["all everywhere"], 0)
    routed = some_routed(num_tokens=3000)

    found = torch.bincount(
        slot_of_pairs(routed.experts, routed.shares, slots).flatten() // slots.count
    )

    assert float(found.max() / found.min()) < 1.1


@pytest.mark.parametrize("where", MAPS)
@pytest.mark.parametrize("kind", [pytest.param("packed", marks=compiled), "plain", "int8", "int4"])
@pytest.mark.parametrize("has_bias", [False, True])
def test_what_ranks_compute_adds_up_to_what_one_computes(
    where: str, kind: str, has_bias: bool
) -> None:
    found = MAPS[where]
    weights = make_weights((50, 64, 32, 6, 3), has_bias=has_bias)
    x, routed = random(50, 64), some_routed()
    expected = moe(x, as_kept(weights, kind), routed)

    parts = []
    for rank in range(found.num_ranks):
        slots, held = slots_of(found, rank), of_experts(weights, found.of_rank(rank))
        with dirty_memory():
            parts.append(moe(x, as_kept(held, kind), own_pairs(routed, slots)))

    torch.testing.assert_close(sum(parts), expected)


def as_kept(weights: ExpertWeights, kind: str) -> ExpertWeights:
    return kept_quantized(weights, kind) if kind.startswith("int") else kept(weights, kind)


def of_experts(weights: ExpertWeights, experts: tuple[int, ...]) -> ExpertWeights:
    chosen = list(experts)

    def of(tensor: object) -> Tensor:
        assert isinstance(tensor, Tensor)
        return tensor[chosen]

    return replace(
        weights,
        gate_up=of(weights.gate_up),
        down=of(weights.down),
        gate_up_bias=None if weights.gate_up_bias is None else of(weights.gate_up_bias),
        down_bias=None if weights.down_bias is None else of(weights.down_bias),
    )


@contextmanager
def dirty_memory() -> Iterator[None]:
    """Fresh memory of torch is NaN, as it may be."""
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)
