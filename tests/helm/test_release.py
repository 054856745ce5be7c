"""A release's life, by the real Helm: made, tested, changed, taken back, and gone."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
from tests.helm.chart import CHART, all_values, helm, profiles
from tests.helm.release_server import NAMESPACE, ReleaseServer

NAME = "rel"
RAY_SERVICE = ("rayservices", f"{NAME}-baton")


@pytest.fixture
def server() -> ReleaseServer:
    return ReleaseServer()


@pytest.fixture
def releases(server: ReleaseServer) -> Iterator[helm.Config]:
    with (
        server.serve() as kubeconfig,
        helm.Config(
            kubeconfig_content=kubeconfig, namespace=NAMESPACE, storage_driver="memory"
        ) as config,
    ):
        yield config


@pytest.mark.parametrize("name", all_values())
def test_a_release_is_installed_tested_changed_taken_back_and_gone(
    server: ReleaseServer, releases: helm.Config, name: str
) -> None:
    values = all_values()[name]
    assert releases.install(CHART, NAME, values, timeout=120)["status"] == "deployed"
    installed = server.uids()
    ray_service = ("rayservices", values.get("fullnameOverride", f"{NAME}-baton"))
    cluster = server.objects[ray_service]["spec"]["rayClusterConfig"]

    tested = releases.test(NAME, timeout=120)
    releases.upgrade(CHART, NAME, values | {"networkPolicy": {"enabled": False}}, timeout=120)

    assert "pods" not in {plural for plural, _ in server.uids()}, tested
    kept = {place: uid for place, uid in installed.items() if place[0] != "networkpolicies"}
    assert kept != installed
    assert server.uids() == kept
    assert server.objects[ray_service]["spec"]["rayClusterConfig"] == cluster
    releases.rollback(NAME, version=1, timeout=120)
    assert server.uids().keys() == installed.keys()
    assert [one["revision"] for one in releases.history(NAME)] == [1, 2, 3]
    releases.uninstall(NAME, timeout=120)
    models = {place for place in installed if place[0] == "persistentvolumeclaims"}
    assert server.uids().keys() == models  # which outlive a release


def test_a_change_that_the_cluster_refuses_is_taken_back(
    server: ReleaseServer, releases: helm.Config
) -> None:
    values = profiles()["kind"]
    releases.install(CHART, NAME, values, timeout=120)
    before = server.uids()
    server.refused = "rayservices"

    with pytest.raises(helm.HelmReleaseError, match="no place"):
        releases.upgrade(CHART, NAME, values | {"fullnameOverride": "other"}, timeout=120)
    server.refused = ""
    releases.rollback(NAME, version=1, timeout=120)

    assert server.uids().keys() == before.keys()


LATE: dict[str, tuple[dict[str, Any], str]] = {
    "a certificate": (
        {
            "tls": {"secretName": "cert"},
            "config": {
                "gateway": {
                    "tls_cert_file": "/etc/baton/tls/tls.crt",
                    "tls_key_file": "/etc/baton/tls/tls.key",
                }
            },
        },
        "names /etc/baton/tls/tls.crt, which would be of cert, and its pods run with nothing there",
    ),
    "another Secret of keys": (
        {
            "security": {"keys": "mine"},
            "config": {"gateway": {"api_keys": ["file:/etc/baton/keys/a"]}},
        },
        "which would be of mine, and its pods run with rel-baton-keys there",
    ),
    "a volume of models": (
        {"model": {"claim": {"existingClaim": "models"}}, "config": {"model": "/models/large"}},
        "names /models/large, which would be of models",
    ),
    "a volume for what is downloaded": (
        {"model": {"claim": {"existingClaim": "models"}}, "config": {"model": "org/large"}},
        "org/large would be downloaded into the home of its pods",
    ),
    "a token of the hub": (
        {
            "model": {"hubToken": {"existingSecret": "hub", "key": "token"}},
            "config": {"model": "org/large"},
            "workerDefaults": {"homeSize": "300Gi"},
        },
        "run without HF_TOKEN",
    ),
    "another port": ({"config": {"gateway": {"port": 8080}}}, "the http port of its pods is 8000"),
    "a device": (
        {
            "config": {"decode": {"resources": {"num_gpus": 1}}},
            "workerDefaults": {"accelerator": {"resource": "nvidia.com/gpu", "count": 1}},
        },
        "its pods run with 0 of nvidia.com/gpu",
    ),
}


@pytest.mark.parametrize("late", LATE)
def test_a_configuration_that_wants_what_the_pods_that_run_lack_is_refused(
    server: ReleaseServer, releases: helm.Config, late: str
) -> None:
    values, reason = LATE[late]
    releases.install(CHART, NAME, {}, timeout=120)
    run_cluster(server)

    with pytest.raises(helm.HelmError, match=reason):
        releases.upgrade(CHART, NAME, values, timeout=120)
    replaced = values | {"upgrade": {"type": "NewCluster"}}
    assert releases.upgrade(CHART, NAME, replaced, timeout=120)["status"] == "deployed"


def test_what_the_pods_that_run_have_is_taken(server: ReleaseServer, releases: helm.Config) -> None:
    values = profiles()["pd-4node"]
    releases.install(CHART, NAME, values, timeout=120)
    run_cluster(server)
    keyed = copy.deepcopy(values)
    keyed["config"]["gateway"]["api_keys"] = ["file:/etc/baton/keys/a"]

    assert releases.upgrade(CHART, NAME, keyed, timeout=120)["status"] == "deployed"


def run_cluster(server: ReleaseServer) -> None:
    """As KubeRay does: the cluster as it was asked for, and its name in the RayService's status."""
    service = server.objects[RAY_SERVICE]
    service["status"] = {"activeServiceStatus": {"rayClusterName": f"{NAME}-baton-x7k2p"}}
    cluster = {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": f"{NAME}-baton-x7k2p"},
        "spec": service["spec"]["rayClusterConfig"],
    }
    with server.changed:
        server.write("rayclusters", f"{NAME}-baton-x7k2p", cluster)


def test_a_gateway_that_does_not_answer_fails_the_charts_own_test(
    server: ReleaseServer, releases: helm.Config
) -> None:
    releases.install(CHART, NAME, profiles()["kind"], timeout=120)
    server.phase = "Failed"

    with pytest.raises(helm.HelmError, match=f"{NAME}-baton-test"):
        releases.test(NAME, timeout=120)
