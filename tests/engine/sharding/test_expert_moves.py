"""Experts arrive where they are wanted, as they were kept."""

from __future__ import annotations

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from tests.kernels.experts.test_moe import compiled, kept, kept_quantized, make_weights
from torch import Tensor, nn

from baton.engine.layers.moe import Experts
from baton.engine.mesh.expert_map import ExpertMap, spread
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import RankGroup, Rendezvous, join, listen
from baton.engine.sharding.expert_moves import Move, experts_stacks, move_weights, moves
from baton.kernels.experts import quantized_experts as quantized_experts
from baton.kernels.experts.moe import SWIGLU, ExpertWeights
from baton.kernels.products.quantized_weight import to_int4

HOST = "127.0.0.1"
NUM_EXPERTS, NUM_RANKS = 6, 3
START = spread(NUM_EXPERTS, NUM_RANKS, 1)
MAPS = {
    "nothing": START,
    "turned": ExpertMap((2, 3, 4, 4, 5, 0, 0, 1, 2), NUM_EXPERTS, NUM_RANKS),
    "others have none of it": ExpertMap((0, 0, 0, 1, 2, 3, 3, 4, 5), NUM_EXPERTS, NUM_RANKS),
    "changed places on a rank": ExpertMap((2, 0, 1, 4, 2, 3, 0, 4, 5), NUM_EXPERTS, NUM_RANKS),
}

maps = st.permutations(range(4)).flatmap(
    lambda each: st.lists(st.sampled_from(range(4)), min_size=2, max_size=2).map(
        lambda more: ExpertMap((*each, *more), 4, 3)
    )
)


@given(maps, maps)
def test_every_slot_that_changes_gets_its_expert_once_from_who_has_it(
    old: ExpertMap, new: ExpertMap
) -> None:
    found = moves(old, new)

    changed = [slot for slot in range(6) if old.experts[slot] != new.experts[slot]]
    assert [move.target for move in found] == changed
    assert all(old.experts[move.source] == new.experts[move.target] for move in found)


def test_a_rank_copies_what_it_has_and_copies_send_in_turn() -> None:
    old = ExpertMap((0, 1, 0, 2, 3, 3, 4, 4), 5, 4)
    new = ExpertMap((0, 1, 0, 2, 0, 3, 0, 4), 5, 4)

    assert moves(old, replace(old, experts=(0, 1, 2, 2, 3, 0, 4, 4))) == [Move(3, 2), Move(0, 5)]
    assert Counter(move.source // 2 for move in moves(old, new)) == {0: 1, 1: 1}


def weights_of(kind: str) -> ExpertWeights:
    weights = make_weights((0, 64, 32, NUM_EXPERTS, 1), has_bias=True)
    if kind.startswith("int"):
        return kept_quantized(weights, kind)
    if kind != "quantized":
        return kept(weights, kind)
    return replace(weights, gate_up=as_on_gpus(weights.gate_up), down=as_on_gpus(weights.down))


def as_on_gpus(weight: object) -> quantized_experts.QuantizedExperts:
    assert isinstance(weight, Tensor)
    rounded = [to_int4(matrix) for matrix in weight]
    found = quantized_experts.empty_like(len(weight), rounded[0], "cpu")
    for expert, matrix in enumerate(rounded):
        found.put(expert, matrix)
    return found


def experts_with(weights: ExpertWeights, chosen: tuple[int, ...]) -> Experts:
    """Some of all, as a rank has them."""
    experts = Experts(NUM_EXPERTS, 64, 32, SWIGLU, has_bias=True, num_slots=len(chosen))
    for name in ("gate_up", "down", "gate_up_bias", "down_bias"):
        whole = getattr(weights, name)
        delattr(experts, name)
        if isinstance(whole, Tensor):
            setattr(experts, name, nn.Parameter(whole[list(chosen)], False))
            continue
        parts = {field: getattr(whole, field, None) for field in ("packed", "scales", "items")}
        some: dict[str, Any] = {
            field: part[list(chosen)] for field, part in parts.items() if isinstance(part, Tensor)
        }
        if hasattr(whole, "bits") and whole.bits:
            some["shape"] = (len(chosen), *whole.shape[1:])
        setattr(experts, name, replace(whole, **some))
    return experts


@pytest.mark.parametrize("to", MAPS)
@pytest.mark.parametrize(
    "kind",
    [pytest.param("packed", marks=compiled), "plain", "int8", "int4", "quantized"],
)
@pytest.mark.parametrize("part_bytes", [500, 64 << 20], ids=["in parts", "at once"])
def test_weights_and_biases_are_those_of_the_new_map(kind: str, to: str, part_bytes: int) -> None:
    weights, new = weights_of(kind), MAPS[to]
    listener = listen(HOST)
    meeting = Rendezvous(
        host=HOST,
        port=listener.getsockname()[1],
        mesh=Mesh(tensor=NUM_RANKS, expert=NUM_RANKS),
        backend="gloo",
    )

    def be(rank: int) -> bool:
        ranks = join(meeting, rank, listener if rank == 0 else None).expert
        assert isinstance(ranks, RankGroup)
        own = experts_with(weights, START.of_rank(rank))
        move_weights(own, ranks, START, new, part_bytes=part_bytes)
        wanted = experts_with(weights, new.of_rank(rank))
        stacks = zip(experts_stacks(own), experts_stacks(wanted), strict=True)
        return all(torch.equal(one, other) for one, other in stacks)

    with ThreadPoolExecutor(NUM_RANKS) as threads:
        assert all(threads.map(be, range(NUM_RANKS)))
