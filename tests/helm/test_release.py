"""A release's life, by the real Helm: made, tested, changed, taken back, and gone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from tests.helm.chart import CHART, helm, profiles
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


@pytest.mark.parametrize("profile", profiles())
def test_a_release_is_installed_tested_changed_taken_back_and_gone(
    server: ReleaseServer, releases: helm.Config, profile: str
) -> None:
    values = profiles()[profile]
    assert releases.install(CHART, NAME, values, timeout=20)["status"] == "deployed"
    installed = server.uids()
    cluster = server.objects[RAY_SERVICE]["spec"]["rayClusterConfig"]

    tested = releases.test(NAME, timeout=20)
    releases.upgrade(CHART, NAME, values | {"networkPolicy": {"enabled": False}}, timeout=20)

    assert "pods" not in {plural for plural, _ in server.uids()}, tested
    kept = {place: uid for place, uid in installed.items() if place[0] != "networkpolicies"}
    assert kept != installed
    assert server.uids() == kept
    assert server.objects[RAY_SERVICE]["spec"]["rayClusterConfig"] == cluster
    releases.rollback(NAME, version=1, timeout=20)
    assert server.uids().keys() == installed.keys()
    assert [one["revision"] for one in releases.history(NAME)] == [1, 2, 3]
    releases.uninstall(NAME, timeout=20)
    assert server.uids() == {}


def test_a_change_that_the_cluster_refuses_is_taken_back(
    server: ReleaseServer, releases: helm.Config
) -> None:
    values = profiles()["kind"]
    releases.install(CHART, NAME, values, timeout=20)
    before = server.uids()
    server.refused = "rayservices"

    with pytest.raises(helm.HelmReleaseError, match="no place"):
        releases.upgrade(CHART, NAME, values | {"fullnameOverride": "other"}, timeout=20)
    server.refused = ""
    releases.rollback(NAME, version=1, timeout=20)

    assert server.uids().keys() == before.keys()


def test_a_gateway_that_does_not_answer_fails_the_charts_own_test(
    server: ReleaseServer, releases: helm.Config
) -> None:
    releases.install(CHART, NAME, profiles()["kind"], timeout=20)
    server.phase = "Failed"

    with pytest.raises(helm.HelmError, match=f"{NAME}-baton-test"):
        releases.test(NAME, timeout=20)
