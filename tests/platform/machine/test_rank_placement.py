"""Which rank sits where: the groups that talk most have the best links."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.platform.topologies import DGX_1, EIGHT_H100_WITH_CARDS, PAIRED_A100_PCIE

from baton.engine.mesh.mesh import Axis, Mesh
from baton.platform.machine.gpu_topology import parse_topology
from baton.platform.machine.rank_placement import (
    axis_pairs,
    links_by_axis,
    links_told,
    place,
    placement_cost,
    slownesses,
)

NEAR, FAR = "NV4", "SYS"


def links_of(text: str) -> list[list[str]]:
    found = parse_topology(text)
    names = [gpu.name for gpu in found.gpus]
    return [[found.link(one, other) for other in names] for one in names]


def tensor_groups(mesh: Mesh, placement: tuple[int, ...]) -> list[tuple[int, ...]]:
    """By their devices."""
    firsts = range(0, mesh.size, mesh.tensor)
    return [
        tuple(sorted(placement[rank] for rank in mesh.members(Axis.TENSOR, first)))
        for first in firsts
    ]


sizes = st.integers(1, 2)
meshes = st.builds(
    Mesh, tensor=st.integers(1, 4), context=sizes, data=sizes, pipeline=st.integers(1, 3)
).filter(lambda mesh: mesh.size <= 12)


@given(st.data())
def test_every_rank_has_a_seat_of_its_own_and_none_is_worse_than_to_stay(
    data: st.DataObject,
) -> None:
    mesh = data.draw(meshes.filter(lambda mesh: mesh.size != 8), label="mesh")
    kinds = st.sampled_from(("NV4", "PIX", "SYS", "NET"))
    drawn = data.draw(st.lists(kinds, min_size=66, max_size=66))
    matrix = [
        ["X" if a == b else drawn[max(a, b) * (max(a, b) - 1) // 2 + min(a, b)]
         for b in range(mesh.size)]
        for a in range(mesh.size)
    ]  # fmt: skip

    placement = place(mesh, matrix)

    axes, slow = axis_pairs(mesh), slownesses(matrix)
    stayed = tuple(range(mesh.size))
    assert sorted(placement) == list(stayed)
    assert placement[0] == 0
    assert placement_cost(axes, slow, placement) <= placement_cost(axes, slow, stayed)


@given(st.permutations(range(6)), st.sampled_from((2, 3)))
def test_tensor_groups_find_the_seats_that_are_joined(order: list[int], tensor: int) -> None:
    group_of = [device // tensor for device in order]
    matrix = [[NEAR if a == b else FAR for b in group_of] for a in group_of]
    mesh = Mesh(tensor=tensor, pipeline=6 // tensor)

    placement = place(mesh, matrix)

    for group in tensor_groups(mesh, placement):
        assert len({group_of[device] for device in group}) == 1


def test_pairs_with_a_bridge_are_tensor_groups() -> None:
    mesh, links = Mesh(tensor=2, pipeline=2), links_of(PAIRED_A100_PCIE)

    placement = place(mesh, links)

    assert tensor_groups(mesh, placement) == [(0, 2), (1, 3)]
    told = links_told(links_by_axis(mesh, links, placement))
    assert told == "tensor over NV12, pipeline over SYS"


def test_a_pipeline_goes_from_neighbour_to_neighbour() -> None:
    links = links_of(DGX_1)

    placement = place(Mesh(pipeline=8), links)

    assert all(links[one][other].startswith("NV") for one, other in pairwise(placement))


def test_four_ranks_sit_where_all_pairs_have_nvlink() -> None:
    links = links_of(DGX_1)
    mesh = Mesh(tensor=4, data=2)

    for group in tensor_groups(mesh, place(mesh, links)):
        assert {links[a][b] for a in group for b in group if a != b} <= {"NV1", "NV2"}


@pytest.mark.parametrize("mesh", [Mesh(tensor=8), Mesh(tensor=4, pipeline=2), Mesh()])
def test_where_all_links_are_alike_all_stay(mesh: Mesh) -> None:
    assert place(mesh, links_of(EIGHT_H100_WITH_CARDS)) == tuple(range(mesh.size))


def test_tensor_groups_stay_on_one_machine_however_many_ranks_there_are() -> None:
    mesh = Mesh(tensor=4, data=2, pipeline=2)
    machine = [device % 2 for device in range(16)]  # as a scheduler that spreads puts them
    matrix = [[NEAR if a == b else "NET" for b in machine] for a in machine]

    placement = place(mesh, matrix)

    assert sorted(placement) == list(range(16))
    for group in tensor_groups(mesh, placement):
        assert len({machine[device] for device in group}) == 1
