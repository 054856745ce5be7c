"""Groups of which each replica is of several pods: they grow and shrink by whole replicas."""

from __future__ import annotations

import pytest
from tests.platform.worker_groups.world import World

from baton.platform.worker_groups.memory import EMPTY_FOR_S


@pytest.mark.parametrize("is_indexing", [True, False])
@pytest.mark.parametrize("engines", [1, 2])
def test_groups_of_several_hosts_grow_and_shrink_by_whole_replicas(
    engines: int, is_indexing: bool
) -> None:
    """Of a pool whose replicas are on a pod each, and of one whose replicas have two engines."""
    world = World(decode=1, hosts=2, engines=engines, is_indexing=is_indexing)
    world.ray.want({"decode": 6 // engines})
    world.turn()
    assert world.decode == (3, 3) and len(world.ray.pods("decode")) == 6
    world.settle()
    assert all(world.ray.placed[name] for name in world.ray.pods("decode"))

    [first, second, third] = (world.ray.pods("decode")[at : at + 2] for at in (0, 2, 4))
    leaving = "decode" if engines == 1 else world.ray.placed[third[0]][0]
    world.ray.want({"decode": 4 // engines})
    for name in third:
        world.ray.placed[name].remove(leaving)
    world.settle()

    assert world.decode == (2, 2) and world.ray.pods("decode") == [*first, *second]
    assert world.ray.killed == []
    assert any("3 -> 2 replicas of 2 pods" in what for _, what in world.adapter.account._done)


@pytest.mark.parametrize("is_indexing", [True, False])
def test_a_replica_of_several_pods_stays_while_there_is_work_on_one_of_them(
    is_indexing: bool,
) -> None:
    world = World(decode=3, hosts=2, is_indexing=is_indexing)
    [_, one, _, other, *_] = world.ray.pods("decode")  # of two of the group's replicas

    world.ray.want({"decode": 4})
    world.ray.placed[one].clear()
    world.ray.placed[other].clear()
    world.settle()

    assert world.ray.killed == []
    if is_indexing:
        assert world.decode == (3, 3) and one in world.ray.pods()
    else:  # KubeRay counts pods alone: any two are one of its replicas
        assert world.decode == (2, 2)
        assert {one, other}.isdisjoint(world.ray.pods())


def test_a_replica_that_lost_a_pod_is_kuberays_to_make_anew_and_costs_no_other() -> None:
    world = World(decode=3, hosts=2)
    [first, second, *busy] = world.ray.pods("decode")
    for name in (first, second):
        world.ray.placed[name].clear()
    world.ray.want({"decode": 4})
    world.turn()
    world.clock.advance(EMPTY_FOR_S)
    world.ray.kube.remove("pods", first)  # evicted
    world.adapter.follow()
    assert world.decode == (3, 3), "what is not whole goes by KubeRay's own word"
    world.settle()

    assert world.decode == (2, 2) and world.ray.pods("decode") == busy
    assert world.ray.killed == []
