"""What a replica of several ranks asks of Ray."""

from __future__ import annotations

import pytest

from baton.engine.mesh.mesh import Mesh
from baton.platform.cluster.ranks.ranks import bundles_of, strategy_of


@pytest.mark.parametrize("mesh", [Mesh(tensor=4), Mesh(tensor=2, pipeline=2)])
def test_the_ranks_of_one_engine_are_on_one_node(mesh: Mesh) -> None:
    assert bundles_of(mesh) == (1, 4)
    assert strategy_of(mesh) == "STRICT_PACK"


def test_engines_may_be_on_several_nodes_but_none_of_them_in_pieces() -> None:
    mesh = Mesh(data=3, tensor=2, expert=6)

    assert bundles_of(mesh) == (2, 3)
    assert strategy_of(mesh) == "PACK"
    size, _ = bundles_of(mesh)
    of_bundles = {mesh.engine_members(rank) for rank in range(mesh.size)}
    assert of_bundles == {tuple(range(first, first + size)) for first in (0, 2, 4)}
    assert [rank // size for rank in mesh.leads] == [0, 1, 2]
