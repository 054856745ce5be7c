"""Changes of worker groups that are cut off, overtaken or not seen, and whatever else happens."""

from __future__ import annotations

import random
from typing import Any

import pytest
from tests.platform.worker_groups.fake_kube import Fault
from tests.platform.worker_groups.simulated_cluster import CLUSTER, SERVICE
from tests.platform.worker_groups.world import World, kept

from baton.platform.worker_groups.adapter import LONGEST_S


@pytest.mark.parametrize("is_done", [False, True])
@pytest.mark.parametrize("request_", ["PATCH rayservices", "PATCH rayclusters"])
@pytest.mark.parametrize("status", [0, 409, 429, 503])
@pytest.mark.parametrize("counts", [(1, 3), (3, 1)])
def test_a_change_that_is_cut_off_anywhere_is_completed_also_by_a_successor(
    counts: tuple[int, int], status: int, request_: str, is_done: bool
) -> None:
    before, after = counts
    world = World(decode=before)
    world.turn()
    world.ray.want({"decode": before}, asked={"decode": after})
    if after < before:
        world.ray.want({"decode": after})
        world.ray.serve()
    world.ray.kube.faults.append(Fault(request_, status, is_done))

    for _ in range(12):
        world.turn()
        service, cluster = world.decode
        assert service >= cluster, "KubeRay might write the cluster from the service at any time"
        if world.ray.kube.faults and not world.ray.kube.faults[0].times:
            world.ray.kube.faults.clear()
            world.restart()  # killed right there

    world.settle()
    assert world.decode == (after, after)
    assert world.ray.killed == []


def test_who_is_overtaken_looks_again_and_never_changes_what_it_did_not_see() -> None:
    world = World()
    world.ray.want({"decode": 2}, asked={"decode": 4})

    def faster(plural: str, name: str) -> None:
        world.ray.kube.before_patch = lambda plural, name: None
        world.ray.write("rayservices", "decode", maxReplicas=6, replicas=2)

    world.ray.kube.before_patch = faster
    assert world.adapter.follow() == 0.0
    assert world.ray.kube.patches == []
    assert "faster" in world.adapter.notes[0]
    world.adapter.follow()

    assert world.decode == (4, 4)


def test_what_cannot_be_read_changes_nothing_and_is_asked_less_and_less() -> None:
    world = World(decode=3)
    world.ray.want({"decode": 1})
    world.ray.is_ray_away = True

    delays = [world.adapter.follow() for _ in range(6)]
    world.clock.advance(1000.0)
    world.adapter.follow()

    assert delays == sorted(delays) and delays[-1] == LONGEST_S
    assert world.ray.kube.patches == []
    world.ray.is_ray_away = False
    world.ray.kube.faults.append(Fault("GET rayclusters", 403))
    world.adapter.follow()
    text = dict(
        (str(sample.labels.get("result")), sample.value)
        for family in world.adapter.families()
        if family.name.endswith("looks_total")
        for sample in family.samples
    )
    assert text == {"away": 7, "403": 1}


@pytest.mark.parametrize(
    ("status", "told"),
    [
        ({"pendingServiceStatus": {"rayClusterName": "baton-new"}}, "coming up"),
        ({"conditions": [{"type": "UpgradeInProgress", "status": "True"}]}, "UpgradeInProgress"),
        ({"activeServiceStatus": {}}, "no cluster yet"),
    ],
)
def test_clusters_that_kuberay_moves_between_are_its_own(status: dict[str, Any], told: str) -> None:
    world = World()
    service = world.ray.kube.get("rayservices", SERVICE)
    service["status"] |= status
    world.ray.kube.put("rayservices", service)

    world.ray.want({"decode": 2}, asked={"decode": 4})
    world.turn(3)

    assert world.ray.kube.patches == []
    assert told in world.adapter.notes[0]


def test_no_pod_ends_with_work_on_it_whatever_happens_and_in_the_end_all_is_as_wanted() -> None:
    chance = random.Random(7)
    for _ in range(4):
        hosts = chance.choice([1, 1, 2, 3])
        world = World(decode=chance.randint(1, 4), hosts=hosts)
        for _ in range(40):
            something_happens(world, chance)
            for part in chance.sample(["follow", "operate", "serve"], 3):
                if part == "follow":
                    world.clock.advance(world.adapter.follow())
                else:
                    getattr(world.ray, part)()
        world.ray.is_ray_away = False
        world.ray.kube.faults.clear()
        world.clock.advance(1000.0)
        world.settle()
        world.settle()

        assert world.ray.killed == []
        need = max(world.ray.config.decode.replicas, world.ray.config.planner.asked_decode)
        in_service, in_cluster = world.decode
        assert in_service == in_cluster >= -(-need // hosts)
        assert hosts > 1 or in_cluster == need  # of several pods some may be empty, and stay
        assert kept(world) == world.ray.config.decode.replicas


def something_happens(world: World, chance: random.Random) -> None:
    number = chance.randint(1, 6)
    match chance.randrange(8):
        case 0:
            world.ray.want({"decode": number})
        case 1:
            now = world.ray.config.decode.replicas
            world.ray.want({"decode": now}, asked={"decode": max(now, number)})
        case 2:
            what = chance.choice(["GET pods", "PATCH rayservices", "PATCH rayclusters"])
            status, is_done = chance.choice([0, 409, 500]), chance.random() < 0.5
            world.ray.kube.faults.append(Fault(what, status, is_done))
        case 3:
            world.restart()
        case 4:  # an operator that has been upgraded writes the cluster anew
            service = world.ray.kube.get("rayservices", SERVICE)
            cluster = world.ray.kube.get("rayclusters", CLUSTER)
            cluster["spec"] = service["spec"]["rayClusterConfig"]
            world.ray.kube.put("rayclusters", cluster)
        case 5:
            world.ray.is_ray_away = not world.ray.is_ray_away
        case _:
            world.clock.advance(chance.choice([0.0, 20.0, 60.0]))
