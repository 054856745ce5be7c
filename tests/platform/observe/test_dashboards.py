"""The chart's dashboards and rules ask for nothing that our processes do not export."""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Set
from pathlib import Path

import msgspec
import yaml
from prometheus_client.parser import text_string_to_metric_families
from tests.in_process_fleet import running_fleet
from tests.platform.planner.planned_deployment import GATEWAY, RULES, Deployment
from tests.platform.worker_groups.world import World

from baton.core.ids import new_request_id
from baton.core.metrics import Family, exposition
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.gateway.requests.generations.generation import Generation
from baton.gateway.requests.metrics import GatewayMetrics
from baton.platform.cluster.registry.planner_link import PlannerLink
from baton.platform.observe.config import MetricsConfig
from baton.platform.replica.metric_help import HELP
from baton.platform.replica.replica_page import PREFIX, ReplicaPage
from baton.replica_core.step_meter import StepCost

ROOT = Path(__file__).parents[3]
CHART = ROOT / "helm" / "baton"
NAME = re.compile(r"\b(baton_\w+)(?:\{([^}]*)\})?")
LABEL = re.compile(r"(\w+)\s*(?:=~|!~|!=|=)")
GROUPING = re.compile(r"\b(?:by|without)\s*\(([^)]*)\)")
GROUPED = re.compile(r"\b(?:by|on)\s*\(([^)]*)\)")
GATHERED = re.compile(r"\b(?:sum|count|avg|min|max)\s*\(")
WHOSE = ("namespace", "release")
"""Labels of targets, of the chart's monitors; elsewhere there may be none."""
SHOWN = 'namespace=~"$namespace",release=~"$release"'
OF_TARGETS = frozenset({"le", "", *WHOSE})
CONFIGURED = {"tier": {"tier"}, "chaos": set[str](), "expert": set[str]()}
"""Labels of what is only there when it is configured, by how its name begins."""

Labels = Mapping[str, Set[str]]


def queries() -> Iterator[tuple[str, str]]:
    """Each with where it stands."""
    for file in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(file.read_text())["panels"]:
            for target in panel["targets"]:
                yield f"{file.name}: {panel['title']}", target["expr"]
    for file in sorted((CHART / "rules").glob("*.yaml")):
        for group in yaml.safe_load(file.read_text())["groups"]:
            for rule in group["rules"]:
                yield f"{file.name}: {rule.get('alert', rule.get('record'))}", rule["expr"]


async def exported() -> Labels:
    """The labels of all that a deployment exports, by name."""
    async with running_fleet() as fleet:
        await fleet.ask([5, 6, 7, 8, 9, 10])
        config = MetricsConfig(peak_tflop_s=1, peak_gb_s=1)
        for replica in fleet.replicas.values():
            replica.worker.core.meter.cost = StepCost(token_flops=1.0)
        pages = [ReplicaPage(replica, config).text() for replica in fleet.replicas.values()]
        metrics = GatewayMetrics()
        metrics.calls.add(1, "Chat", "OK")
        asked = Generation(request_id=new_request_id(), prompt=(5, 6), sampling=SamplingParams())
        metrics.count_ended("ok", asked, (await fleet.ask([5, 6])).receipt, 1)
        families = (*metrics.families(), *fleet.dispatcher.metrics())
        planner = told_by_a_planner(nodes="kuberay")
        link = PlannerLink(fleet.dispatcher, {})
        link.has_followed_groups = True
        families = (*families, *planner, *link.families())
        pages.append(exposition(families, {"model": "demo"}))
        pages.append(exposition(told_by_an_adapter()))
    labels: defaultdict[str, Set[str]] = defaultdict(frozenset)
    of_replicas = frozenset({"model", "role", "replica"})
    for name in HELP:
        own = next((it for start, it in CONFIGURED.items() if name.startswith(start)), set[str]())
        labels[PREFIX + name] = of_replicas | own
    for page in pages:
        for family in text_string_to_metric_families(page):
            for sample in family.samples:
                labels[sample.name] |= sample.labels.keys()
    return labels


def told_by_a_planner(**rules: str) -> tuple[Family, ...]:
    """That has decided, and was told of a flip."""
    deployment = Deployment(msgspec.structs.replace(RULES, **rules))
    deployment.live(4.0, 60)
    deployment.planner.flips(deployment.known.replicas[0].replica_id, Role.DECODE)
    return deployment.planner.add_report(GATEWAY, deployment.total).families


def told_by_an_adapter() -> Iterator[Family]:
    """That has changed a group, and looked again."""
    world = World()
    world.ray.want({"decode": 2}, asked={"decode": 4})
    world.turn(2)
    return world.adapter.families()


async def test_every_query_asks_for_what_is_exported_by_labels_that_it_has() -> None:
    labels_by_name = await exported()
    found = list(queries())

    everything = OF_TARGETS.union(*labels_by_name.values())
    unknown = [
        f"{where}: {name}{{{selector}}}"
        for where, query in found
        for name, selector in NAME.findall(query)
        if name not in labels_by_name
        or not set(LABEL.findall(selector)) <= labels_by_name[name] | OF_TARGETS
    ]
    strange = [
        f"{where}: {label}"
        for where, query in found
        for group in GROUPING.findall(query)
        for label in map(str.strip, group.split(","))
        if label not in everything
    ]
    assert not unknown
    assert not strange
    assert len(found) > 100


def test_every_selector_of_a_panel_is_of_the_releases_that_are_shown() -> None:
    mixed = [
        f"{where}: {name}{{{selector}}}"
        for where, query in queries()
        if where.startswith("baton-")
        for name, selector in NAME.findall(query)
        if not selector.startswith(SHOWN)
    ]

    assert not mixed


def test_no_rule_takes_series_of_two_releases_together() -> None:
    rules = [(where, query) for where, query in queries() if where.startswith("baton.yaml")]

    mixed = [
        f"{where}: {group}"
        for where, query in rules
        for group in GROUPED.findall(query)
        if not set(WHOSE) <= set(map(str.strip, group.split(",")))
    ]
    assert not mixed
    assert not [where for where, query in rules if GATHERED.search(query)]
    assert len(rules) > 25


def test_every_alert_has_a_runbook_and_every_runbook_an_alert() -> None:
    [groups] = [
        yaml.safe_load(file.read_text())["groups"] for file in (CHART / "rules").glob("*.yaml")
    ]
    alerts = {rule["alert"]: rule for group in groups for rule in group["rules"] if "alert" in rule}
    runbooks = {file.stem for file in (ROOT / "docs" / "runbooks").glob("*.md")} - {"README"}

    assert alerts.keys() == runbooks
    for name, rule in alerts.items():
        assert rule["annotations"]["runbook"] == f"docs/runbooks/{name}.md"
        assert rule["labels"]["severity"] in ("warning", "critical")
