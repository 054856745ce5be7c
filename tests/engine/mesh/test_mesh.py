"""Who is where among the ranks of a replica."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from baton.core.errors import InvalidConfig
from baton.engine.mesh.mesh import Axis, Mesh, Place

sizes = st.integers(1, 3)
meshes = st.builds(Mesh, tensor=sizes, context=sizes, data=sizes, pipeline=sizes)


@given(meshes)
def test_every_place_is_that_of_one_rank(mesh: Mesh) -> None:
    places = [mesh.place(rank) for rank in range(mesh.size)]

    assert len(set(places)) == mesh.size
    assert [mesh.rank_at(place) for place in places] == list(range(mesh.size))


@given(meshes, st.sampled_from(Axis))
def test_the_groups_of_an_axis_are_of_its_size_and_have_each_rank_once(
    mesh: Mesh, axis: Axis
) -> None:
    groups = {mesh.members(axis, rank) for rank in range(mesh.size)}

    assert sorted(rank for group in groups for rank in group) == list(range(mesh.size))
    assert {len(group) for group in groups} == {getattr(mesh, axis.value)}


def test_those_that_talk_most_are_neighbours() -> None:
    mesh = Mesh(tensor=2, context=2, pipeline=2)

    assert mesh.members(Axis.TENSOR, 3) == (2, 3)
    assert mesh.members(Axis.CONTEXT, 3) == (1, 3)
    assert mesh.members(Axis.PIPELINE, 3) == (3, 7)
    assert mesh.place(7) == Place(tensor=1, context=1, stage=1)


def test_experts_are_spread_over_whole_tensor_groups() -> None:
    over_one, over_both = (Mesh(tensor=2, data=2, expert=size) for size in (2, 4))

    assert over_one.members(Axis.EXPERT, 3) == (2, 3)
    assert over_both.members(Axis.EXPERT, 3) == (0, 1, 2, 3)
    with pytest.raises(InvalidConfig, match="it can be 1, 2, 4"):
        Mesh(tensor=2, data=2, expert=3)
    with pytest.raises(InvalidConfig, match="data parallel 0"):
        Mesh(data=0)
