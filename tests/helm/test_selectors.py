"""Who is selected: labels of pods as KubeRay sets them, against the selectors that meet them.

KubeRay 1.7 (`labelPod`, `HeadServiceLabels`): pods are `app.kubernetes.io/name: kuberay` unless
their template says otherwise, and the Service of a RayService's head selects that name whatever it
says.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.helm.chart import CHART, OPERATED, Manifest, Release, Rendered, profiles, render

Labels = Mapping[str, str]

CLUSTER = "rel-baton-x7k2p"
BY_KUBERAY = {
    "app.kubernetes.io/name": "kuberay",
    "app.kubernetes.io/created-by": "kuberay-operator",
}
FOLLOWED = {
    "config": {"planner": {"nodes": "kuberay"}, "gateway": {"replicas": 2}},
    "rayAuth": {"secretName": "ray-token"},
    "workerDefaults": {"replicas": 2, "maxReplicas": 3},
    "collector": {"enabled": True, "exporters": {"debug": {}}},
    "monitoring": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": False}},
}


def ray_pod(group: str, kind: str, template: Manifest) -> Labels:
    by_ray = {
        "ray.io/is-ray-node": "yes",
        "ray.io/cluster": CLUSTER,
        "ray.io/node-type": kind,
        "ray.io/group": group,
    }
    own: dict[str, str] = template["metadata"]["labels"]
    return BY_KUBERAY | own | by_ray


def pods(rendered: Rendered) -> dict[str, Labels]:
    """Labels by the name of a group, or of a Deployment."""
    cluster = rendered.one("RayService")["spec"]["rayClusterConfig"]
    found = {"head": ray_pod("headgroup", "head", cluster["headGroupSpec"]["template"])}
    for group in cluster["workerGroupSpecs"]:
        found[group["groupName"]] = ray_pod(group["groupName"], "worker", group["template"])
    for one in rendered:
        if one["kind"] == "Deployment":
            found[one["metadata"]["name"]] = one["spec"]["template"]["metadata"]["labels"]
    return found


def chosen(selector: Labels, those: Mapping[str, Labels]) -> set[str]:
    return {name for name, labels in those.items() if selector.items() <= labels.items()}


def selectors(rendered: Rendered) -> Iterator[tuple[str, Labels]]:
    """Of pods, by whatever has one."""
    for one in rendered:
        where, spec = f"{one['kind']} {one['metadata']['name']}", one.get("spec", {})
        match one["kind"]:
            case "Service":
                yield where, spec["selector"]
            case "NetworkPolicy":
                yield where, spec["podSelector"]["matchLabels"]
            case "PodDisruptionBudget" | "PodMonitor" | "Deployment":
                yield where, spec["selector"]["matchLabels"]


def umbrella(folder: Path, names: Sequence[str]) -> Path:
    """A chart of several Batons; those that are not called so are aliases."""
    shutil.copytree(CHART, folder / "charts" / CHART.name)
    wanted = [{"name": "baton", "version": "*", "alias": name} for name in names]
    about = {"apiVersion": "v2", "name": "all", "version": "1.0.0", "dependencies": wanted}
    (folder / "Chart.yaml").write_text(yaml.safe_dump(about))
    (folder / "values.yaml").touch()
    return folder


def of_release(one: Any) -> Iterator[Labels]:
    """Selectors anywhere inside that name the release."""
    if isinstance(one, dict):
        labels = one.get("matchLabels", {})
        if "app.kubernetes.io/instance" in labels:
            yield labels
        for inner in one.values():
            yield from of_release(inner)
    elif isinstance(one, list):
        for inner in one:
            yield from of_release(inner)


@pytest.mark.parametrize("profile", profiles())
def test_the_service_that_kuberay_makes_for_the_head_finds_it(profile: str) -> None:
    head = pods(render(profiles()[profile]))["head"]
    by_kuberay = BY_KUBERAY | {"ray.io/cluster": CLUSTER, "ray.io/node-type": "head"}

    assert by_kuberay.items() <= head.items()


def test_every_selector_finds_those_that_it_is_for() -> None:
    rendered = render(FOLLOWED, Release(api_versions=OPERATED))
    there = pods(rendered)

    found = {where: chosen(selector, there) for where, selector in selectors(rendered)}

    workers = {"gateway", "prefill", "decode"}
    assert found.pop("Service rel-baton") == {"gateway"}
    assert found.pop("NetworkPolicy rel-baton-gateways") == {"gateway"}
    assert found.pop("NetworkPolicy rel-baton-head") == {"head"}
    assert found.pop("NetworkPolicy rel-baton-workers") == workers
    assert found.pop("Service rel-baton-metrics") == {"head"} | workers
    for name in ("groups", "collector"):
        for kind in ("Service", "NetworkPolicy", "Deployment"):
            assert found.pop(f"{kind} rel-baton-{name}") == {f"rel-baton-{name}"}
    for group in workers:
        assert found.pop(f"PodDisruptionBudget rel-baton-{group}") == {group}
    assert not found
    policies = [one["spec"] for one in rendered if one["kind"] == "NetworkPolicy"]
    assert all(chosen(labels, there) for labels in of_release(policies))


def test_pods_that_an_older_chart_made_are_still_selected() -> None:
    """They were `app.kubernetes.io/name: baton` and had the instance, the component, no more."""
    rendered = render(FOLLOWED, Release(api_versions=OPERATED))
    kept = ("app.kubernetes.io/instance", "app.kubernetes.io/component")
    there = {
        name: {key: value for key, value in labels.items() if key in kept or "ray.io/" in key}
        | {"app.kubernetes.io/name": "baton"}
        for name, labels in pods(rendered).items()
    }

    assert all(chosen(selector, there) for _, selector in selectors(rendered))


def test_what_follows_is_scraped_by_a_service_monitor_where_pod_monitors_are_not_wanted() -> None:
    rendered = render(FOLLOWED, Release(api_versions=OPERATED))
    services = {
        one["metadata"]["name"]: one["metadata"]["labels"]
        for one in rendered
        if one["kind"] == "Service"
    }

    monitored = {
        one["metadata"]["name"]: chosen(one["spec"]["selector"]["matchLabels"], services)
        for one in rendered
        if one["kind"] == "ServiceMonitor"
    }

    assert monitored == {
        "rel-baton": {"rel-baton-metrics"},
        "rel-baton-groups": {"rel-baton-groups"},
    }


def test_batons_of_one_release_select_none_of_each_others_pods(tmp_path: Path) -> None:
    names = ("baton", "chat", f"vectors{'-of-many-words' * 4}")
    chart = umbrella(tmp_path, names)
    values = {name: FOLLOWED | {"fullnameOverride": f"own-{name[:20]}"} for name in names}
    together = [
        render(values, Release(api_versions=OPERATED, chart=chart, path=f"all/charts/{name}"))
        for name in names
    ]
    there = [pods(rendered) for rendered in together]

    for rendered, own in zip(together, there, strict=True):
        others = [labels for found in there if found is not own for labels in found.values()]
        assert len(own) == 6
        for where, selector in selectors(rendered):
            assert chosen(selector, own), where
            assert not any(selector.items() <= labels.items() for labels in others), where
        instances = {labels["app.kubernetes.io/instance"] for labels in own.values()}
        assert all(len(instance) <= 63 for instance in instances)
        policies = [one["spec"] for one in rendered if one["kind"] == "NetworkPolicy"]
        peers = [labels for labels in of_release(policies) if "ray.io/node-type" not in labels]
        reached = {name for labels in peers for name in chosen(labels, own)}
        assert reached == set(own)
