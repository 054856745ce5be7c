"""Worker groups that follow pools, beside a KubeRay that deletes whatever is too many."""

from __future__ import annotations

import random
from typing import Any

import pytest
import yaml
from tests.platform.worker_groups.fake_kube import Fault
from tests.platform.worker_groups.simulated_cluster import (
    CLUSTER,
    SERVICE,
    DirectKube,
    SimulatedCluster,
    config_of,
    group,
)

from baton.core.clock import ManualClock
from baton.platform.cluster.applications.serve_document import configuration
from baton.platform.worker_groups.adapter import LONGEST_S, Adapter
from baton.platform.worker_groups.memory import EMPTY_FOR_S


class World:
    """The adapter and all others, a turn each."""

    def __init__(
        self,
        *,
        decode: int = 2,
        hosts: int = 1,
        engines: int = 1,
        is_indexing: bool = True,
        is_autoscaled: bool = False,
        keys: tuple[str, ...] = (),
    ) -> None:
        """`hosts`: pods of each replica of the decode group; `engines`: of each decode replica."""
        several = {"numOfHosts": hosts} if hosts > 1 else {}
        groups = [
            group("gateway", "gateway", 1),
            group("prefill", "prefill", 1),
            group("decode", "decode", decode, **several),
        ]
        config = config_of({"prefill": 1, "decode": decode * hosts // engines}, engines=engines)
        self.ray = SimulatedCluster(
            groups, config, is_autoscaled=is_autoscaled, is_indexing=is_indexing
        )
        self.keys = keys
        self.clock = ManualClock(100.0)
        self.restart()

    def restart(self) -> None:
        self.adapter = Adapter(DirectKube(self.ray.kube), self.ray, self.keys, self.clock)

    def turn(self, times: int = 1) -> None:
        for _ in range(times):
            self.clock.advance(self.adapter.follow() or 0.1)
            self.ray.operate()
            self.ray.serve()

    def settle(self) -> None:
        self.turn(int(EMPTY_FOR_S / 5) + 3)

    @property
    def decode(self) -> tuple[int, int]:
        """Of the RayService and the RayCluster."""
        return self.ray.service_counts["decode"], self.ray.cluster_counts["decode"]


def test_groups_grow_for_what_is_asked_and_shrink_by_named_pods_that_are_empty() -> None:
    world = World()

    world.ray.want({"decode": 2}, asked={"decode": 4})  # first the nodes
    world.turn()
    assert world.decode == (4, 4) and len(world.ray.pods("decode")) == 4
    world.ray.want({"decode": 4}, asked={"decode": 4})  # then the pool
    world.settle()
    world.ray.want({"decode": 1})
    world.ray.serve()  # drained
    world.turn()
    assert world.decode == (4, 4), "empty for too short a time"
    world.settle()

    assert world.decode == (1, 1) and len(world.ray.pods("decode")) == 1
    assert world.ray.killed == []
    orders = [plural for plural, _, patch in world.ray.kube.patches if _moves(patch)]
    assert orders == ["rayservices", "rayclusters", "rayclusters", "rayservices"]


def _moves(patch: list[dict[str, object]]) -> bool:
    return any(str(one["path"]).endswith("/replicas") and one["op"] == "add" for one in patch)


def test_a_pod_that_still_drains_stays_however_few_are_wanted() -> None:
    world = World(decode=3)
    [first, *_] = world.ray.pods("decode")

    world.ray.want({"decode": 1})
    for _ in range(20):  # Serve has not ended them yet
        world.clock.advance(world.adapter.follow())
        world.ray.operate()
    assert world.decode == (3, 3)
    world.ray.placed[first].clear()
    for _ in range(20):
        world.clock.advance(world.adapter.follow())
        world.ray.operate()

    assert world.decode == (2, 2) and first not in world.ray.pods()
    assert world.ray.killed == []


def test_a_pod_that_kuberay_makes_in_the_middle_of_a_look_costs_no_other() -> None:
    world = World(decode=3)
    [first, *_] = world.ray.pods("decode")
    world.ray.placed[first].clear()
    world.ray.want({"decode": 2})
    world.turn()
    world.clock.advance(EMPTY_FOR_S)
    world.ray.kube.remove("pods", first)  # evicted
    busy = world.ray.pods("decode")

    world.ray.kube.before_patch = lambda plural, name: world.ray.operate()
    world.adapter.follow()
    assert world.decode == (3, 3), "of the three that there are by now, none is named"
    world.settle()

    assert world.decode == (2, 2) and world.ray.pods("decode") == busy
    assert world.ray.killed == []


def test_who_leaves_stays_named_until_it_has_left() -> None:
    world = World(decode=3)
    world.ray.want({"decode": 2})
    world.settle()
    [named] = world.ray.specs()[2]["scaleStrategy"]["workersToDelete"]
    leaving = {
        "metadata": {
            "name": named,
            "deletionTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"ray.io/group": "decode"},
        },
        "spec": {"nodeName": "node-9"},
        "status": {"podIP": "10.0.0.99"},
    }
    world.ray.kube.put("pods", leaving)  # its drain takes minutes

    world.ray.want({"decode": 2}, asked={"decode": 4})
    world.adapter.follow()

    decode = world.ray.specs()[2]
    assert decode["replicas"] == 4
    assert decode["scaleStrategy"]["workersToDelete"] == [named]


def test_the_rayservice_is_lowered_once_the_pods_have_left() -> None:
    world = World(decode=3)
    world.ray.want({"decode": 1})
    world.ray.serve()
    world.adapter.follow()
    world.clock.advance(EMPTY_FOR_S)
    world.adapter.follow()
    world.adapter.follow()
    assert world.decode == (3, 1), "a cluster that is written anew has forgotten their names"

    world.ray.operate()
    world.adapter.follow()

    assert world.decode == (1, 1)


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


def test_where_rays_autoscaler_is_on_only_the_clusters_floor_moves() -> None:
    world = World(is_autoscaled=True)
    before = world.ray.kube.get("rayservices", SERVICE)["spec"]["rayClusterConfig"]

    world.ray.want({"decode": 2}, asked={"decode": 9})
    world.turn()

    decode = world.ray.specs()[2]
    assert (decode["minReplicas"], decode["replicas"], decode["maxReplicas"]) == (6, 2, 6)
    assert "scaleStrategy" not in decode
    assert "raise maxReplicas" in " ".join(world.adapter.notes)
    world.ray.want({"decode": 1})
    world.turn()
    assert world.ray.specs()[2]["minReplicas"] == 1
    after = world.ray.kube.get("rayservices", SERVICE)["spec"]["rayClusterConfig"]
    assert after == before


def test_a_number_that_a_person_sets_stays_for_a_while_within_their_limits() -> None:
    world = World()
    world.turn()

    world.ray.write("rayclusters", "decode", replicas=5)
    world.ray.operate()
    world.settle()
    assert world.decode == (2, 5), "held"
    world.clock.advance(600.0)
    world.settle()
    assert world.decode == (2, 2)
    world.ray.write("rayclusters", "decode", minReplicas=2, maxReplicas=3)
    world.ray.want({"decode": 2}, asked={"decode": 6})
    world.turn()
    assert world.decode == (3, 3)
    world.ray.want({"decode": 1})
    world.settle()

    assert world.decode == (2, 2)
    assert world.ray.killed == []


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


def test_the_document_of_the_rayservice_gets_the_numbers_that_serve_has_once_they_are_steady() -> (
    None
):
    world = World()
    world.ray.want({"decode": 3})
    world.adapter.follow()
    assert kept(world) == 2
    world.adapter.follow()
    assert kept(world) == 3
    num_patches = len(world.ray.kube.patches)
    world.adapter.follow()
    assert len(world.ray.kube.patches) == num_patches

    service = world.ray.kube.get("rayservices", SERVICE)  # somebody deploys another version
    told = yaml.safe_load(service["spec"]["serveConfigV2"])
    told["applications"][0]["args"]["model"] = "other"
    service["spec"]["serveConfigV2"] = yaml.safe_dump(told)
    world.ray.kube.put("rayservices", service)
    world.ray.want({"decode": 5})
    for _ in range(3):
        world.adapter.follow()

    assert kept(world) == 3


@pytest.mark.parametrize("text", ["", None, "proxy_location: Disabled\n"])
def test_a_rayservice_whose_document_names_no_application_keeps_it_so(text: str | None) -> None:
    world = World()
    service = world.ray.kube.get("rayservices", SERVICE)
    del service["spec"]["serveConfigV2"]
    before = service["spec"] | ({} if text is None else {"serveConfigV2": text})
    world.ray.kube.put("rayservices", {**service, "spec": before})

    world.turn(3)

    assert world.ray.kube.get("rayservices", SERVICE)["spec"] == before
    assert world.adapter.notes == ()


def kept(world: World) -> int:
    told = yaml.safe_load(world.ray.kube.get("rayservices", SERVICE)["spec"]["serveConfigV2"])
    return configuration(told["applications"][0]).decode.replicas


def test_pods_that_are_alone_in_their_zone_go_first() -> None:
    zones = {f"node-{number}": {"zone": "a" if number < 5 else "b"} for number in range(1, 9)}
    world = World(decode=3, keys=("zone",))  # decode: nodes 3 and 4 in a, 5 in b
    for name, labels in zones.items():
        world.ray.kube.put("nodes", {"metadata": {"name": name, "labels": labels}})
    first, second, _alone = world.ray.pods("decode")
    world.ray.write("rayclusters", "decode", minReplicas=2)
    world.ray.want({"decode": 1})
    world.ray.placed = {first: ["decode"], world.ray.pods("prefill")[0]: ["prefill"]}

    world.settle()

    assert world.ray.pods("decode") == [first, second]


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
