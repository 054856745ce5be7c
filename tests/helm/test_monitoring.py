"""What Prometheus and Grafana are given by several releases, who share both."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from tests.helm.chart import OPERATED, Manifest, Release, Rendered, render

RELEASES = [
    Release(namespace="prod", api_versions=OPERATED),
    Release(namespace="prod", name="two", api_versions=OPERATED),
    Release(namespace="test", api_versions=OPERATED),
]
SHOWN = {"monitoring": {"dashboards": {"enabled": True}}}
FOLLOWED = {
    "config": {"planner": {"nodes": "kuberay"}, "gateway": {"replicas": 2}},
    "rayAuth": {"secretName": "ray-token"},
    "workerDefaults": {"replicas": 2, "maxReplicas": 3},
}
KINDS = {"PodMonitor": "podMetricsEndpoints", "ServiceMonitor": "endpoints"}


def dashboards(rendered: Rendered) -> dict[str, Any]:
    """By the file that Grafana's sidecar writes."""
    return {
        file: json.loads(text)
        for one in rendered.by_template["templates/dashboards.yaml"]
        for file, text in one["data"].items()
    }


def current(dashboard: Any) -> dict[str, Any]:
    return {
        variable["name"]: variable["current"]["value"]
        for variable in dashboard["templating"]["list"]
        if variable["type"] == "query"
    }


def endpoints(rendered: Rendered) -> Iterator[Manifest]:
    for one in rendered:
        if one["kind"] in KINDS:
            yield from one["spec"][KINDS[one["kind"]]]


def test_dashboards_of_releases_are_others_and_show_each_its_own() -> None:
    found = [dashboards(render(SHOWN, release)) for release in RELEASES]

    each = [(file, one) for those in found for file, one in those.items()]
    assert len(each) == 15
    for names in (
        {file for file, _ in each},
        {one["uid"] for _, one in each},
        {one["title"] for _, one in each},
    ):
        assert len(names) == 15
    assert all(len(one["uid"]) <= 40 for _, one in each), "Grafana takes no longer ones"
    for release, those in zip(RELEASES, found, strict=True):
        for one in those.values():
            shown = {"namespace": [release.namespace], "release": [release.name]}
            assert current(one) | shown == current(one)
            assert one["links"][0]["tags"] == [f"{release.namespace}/{release.name}"]
            assert set(one["links"][0]["tags"]) < set(one["tags"])


def test_where_nothing_of_the_chart_scrapes_dashboards_show_all_there_is() -> None:
    for one in dashboards(render(SHOWN)).values():
        assert set(current(one).values()) == {"$__all"}


@pytest.mark.parametrize("kind", KINDS)
def test_all_that_a_monitor_scrapes_says_whose_it_is_before_what_users_say(kind: str) -> None:
    own = {"targetLabel": "zone", "replacement": "here"}
    values = {kind[0].lower() + kind[1:]: {"enabled": True, "relabelings": [own]}}
    if kind == "ServiceMonitor":
        values["podMonitor"] = {"enabled": False}

    found = list(endpoints(render({**FOLLOWED, "monitoring": values}, RELEASES[1])))

    ports = [one["port"] for one in found]
    assert ports == ["metrics", "as-metrics", "dash-metrics", "baton-0", "metrics"], (
        "Ray's agent, autoscaler and dashboard, Baton's processes, and what has groups follow"
    )
    for one in found:
        assert one["relabelings"] == [{"targetLabel": "release", "replacement": "two"}, own]
