"""Worker groups that follow pools, beside a KubeRay that deletes whatever is too many."""

from __future__ import annotations

import pytest
import yaml
from tests.platform.worker_groups.simulated_cluster import SERVICE
from tests.platform.worker_groups.world import World, kept

from baton.platform.worker_groups.memory import EMPTY_FOR_S


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
