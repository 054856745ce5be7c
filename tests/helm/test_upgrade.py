"""Each row of what KubeRay does with a change: docs/kubernetes.md has the table."""

from __future__ import annotations

import copy
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from baton.platform.cli.main import app
from baton.platform.config.docs import settings
from baton.platform.kubernetes.upgrade import TIMEOUT, Outcome, predict, predict_annotations

Spec = dict[str, Any]


def group(name: str, **changes: Any) -> Spec:
    pod: Spec = {"spec": {"containers": [{"name": "ray-worker", "image": "baton:1"}]}}
    return {
        "groupName": name,
        "replicas": 1,
        "minReplicas": 1,
        "maxReplicas": 1,
        "template": pod,
    } | (changes)


def service(upgrade: str = "NewCluster", **changes: Any) -> Spec:
    """`spec` of a RayService with two groups; `args` are the application's."""
    args = changes.pop("args", {"model": "demo"})
    deployments = changes.pop("deployments", [])
    application = {"name": "baton", "import_path": "a:b", "args": args, "deployments": deployments}
    return {
        "upgradeStrategy": {"type": upgrade},
        "serveConfigV2": yaml.safe_dump({"applications": [application]}),
        "rayClusterConfig": {
            "rayVersion": "2.60.0",
            "headGroupSpec": {"template": {"spec": {"containers": [{"name": "ray-head"}]}}},
            "workerGroupSpecs": [group("gateway"), group("decode")],
        }
        | changes,
    }


def outcomes(old: Spec, new: Spec, *, has_new_operator: bool = False) -> dict[str, Outcome]:
    """By the last two steps of the path."""
    effects = predict(old, new, has_new_operator=has_new_operator)
    return {".".join(effect.path.split(".")[-2:]): effect.outcome for effect in effects}


def test_nothing_comes_of_no_change() -> None:
    assert predict(service(), service()) == []


def test_an_argument_of_the_application_restarts_replicas_in_the_same_cluster() -> None:
    assert outcomes(service(), service(args={"model": "other"})) == {"args.model": Outcome.RESTART}


def test_a_number_of_serves_replicas_restarts_nobody() -> None:
    old = service(deployments=[{"name": "Decode", "num_replicas": 2}])
    new = service(deployments=[{"name": "Decode", "num_replicas": 3}])

    assert list(outcomes(old, new).values()) == [Outcome.IN_PLACE]


@pytest.mark.parametrize(
    "changes",
    [
        {"replicas": 2},
        {"minReplicas": 0},
        {"maxReplicas": 4},
        {"scaleStrategy": {"workersToDelete": ["pod-1"]}},
    ],
)
def test_counts_of_a_group_are_ignored(changes: Spec) -> None:
    new = service(workerGroupSpecs=[group("gateway"), group("decode", **changes)])

    assert list(outcomes(service(), new).values()) == [Outcome.IGNORED]


@pytest.mark.parametrize("key", ["tolerations", "schedulingGates"])
def test_tolerations_and_gates_of_pods_are_ignored(key: str) -> None:
    new = service()
    new["rayClusterConfig"]["workerGroupSpecs"][1]["template"]["spec"][key] = [{"name": "a"}]
    newer = copy.deepcopy(new)
    newer["rayClusterConfig"]["workerGroupSpecs"][1]["template"]["spec"][key] = [{"name": "b"}]

    assert set(outcomes(service(), new).values()) == {Outcome.IGNORED}
    assert set(outcomes(new, newer).values()) == {Outcome.IGNORED}
    assert "next change that makes a new cluster" in predict(new, newer)[0].reason


def test_a_clusters_own_upgrade_strategy_is_ignored_and_the_services_is_not() -> None:
    new = service(upgradeStrategy={"type": "Recreate"})

    assert list(outcomes(service(), new).values()) == [Outcome.IGNORED]
    assert outcomes(service(), service("None")) == {"upgradeStrategy.type": Outcome.IN_PLACE}


def test_a_group_at_the_end_is_added_and_brings_counts_that_were_ignored_with_it() -> None:
    groups = [group("gateway"), group("decode", replicas=3), group("late")]

    found = outcomes(service(), service(workerGroupSpecs=groups))

    assert len(found) == 2
    assert set(found.values()) == {Outcome.IN_PLACE}


def test_a_group_before_others_is_a_new_cluster() -> None:
    groups = [group("gateway"), group("early"), group("decode")]

    assert set(outcomes(service(), service(workerGroupSpecs=groups)).values()) == {
        Outcome.NEW_CLUSTER
    }


def test_a_group_that_is_gone_is_a_new_cluster() -> None:
    new = service(workerGroupSpecs=[group("gateway")])

    assert list(outcomes(service(), new).values()) == [Outcome.NEW_CLUSTER]


def test_a_label_of_a_pod_is_a_new_cluster_which_begins_with_all_other_changes() -> None:
    new = service(args={"model": "other"})
    groups = new["rayClusterConfig"]["workerGroupSpecs"]
    groups[1] |= {"replicas": 5}
    groups[1]["template"]["metadata"] = {"labels": {"team": "a"}}

    found = outcomes(service(), new)

    assert len(found) == 3
    assert set(found.values()) == {Outcome.NEW_CLUSTER}


def test_with_the_type_none_what_needs_a_new_cluster_is_ignored_and_serve_is_told() -> None:
    new = service("None", args={"model": "other"}, rayVersion="2.61.0")

    assert outcomes(service("None"), new) == {
        "args.model": Outcome.RESTART,
        "rayClusterConfig.rayVersion": Outcome.IGNORED,
    }


KEYS = ["file:/etc/baton/keys/api"]
CERTIFICATE = {
    f"tls_{name}_file": f"/etc/baton/cluster/{file}"
    for name, file in (("cert", "tls.crt"), ("key", "tls.key"), ("ca", "ca.crt"))
}


@pytest.mark.parametrize(
    ("values", "outcome"),
    [
        ({"config": {"gateway": {"api_keys": KEYS}}}, Outcome.IN_PLACE),
        ({"config": {"gateway": {"tenants": {"a": {"api_keys": KEYS}}}}}, Outcome.IN_PLACE),
        ({"config": {"security": CERTIFICATE}}, Outcome.RESTART),
        ({"config": {"security": {"token_file": "/etc/baton/cluster/token"}}}, Outcome.RESTART),
        ({"collector": {"enabled": True, "exporters": {"debug": {}}}}, Outcome.RESTART),
    ],
)
def test_what_is_used_first_on_a_running_release_takes_no_other_cluster(
    values: Spec, outcome: Outcome
) -> None:
    """Where the type is None, as it is by default, nothing of it is ignored."""
    from tests.helm.chart import render  # Helm's engine, which not every platform has

    old, new = render().one("RayService")["spec"], render(values).one("RayService")["spec"]

    assert old["upgradeStrategy"] == {"type": "None"}
    assert set(outcomes(old, new).values()) == {outcome}


def test_a_new_operator_writes_what_was_ignored() -> None:
    new = service(workerGroupSpecs=[group("gateway"), group("decode", replicas=2)])

    assert list(outcomes(service(), new, has_new_operator=True).values()) == [Outcome.IN_PLACE]


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({}, Outcome.IGNORED),
        ({"rayVersion": "2.61.0"}, Outcome.NEW_CLUSTER),
        (
            {"workerGroupSpecs": [group("gateway"), group("decode"), group("late")]},
            Outcome.IN_PLACE,
        ),
    ],
)
def test_annotations_are_the_clusters_once_it_is_written_and_the_timeout_is_read_at_once(
    changes: Spec, outcome: Outcome
) -> None:
    of_spec = predict(service(), service(**changes))

    found = predict_annotations({TIMEOUT: "1h"}, {TIMEOUT: "2h", "a.b/c": "d"}, of_spec)

    assert [(one.path, one.before, one.after, one.outcome) for one in found] == [
        (f"metadata.annotations.{TIMEOUT}", "1h", "2h", Outcome.IN_PLACE),
        ("metadata.annotations.a.b/c", None, "d", outcome),
    ]


def manifest(spec: Spec, **annotations: str) -> str:
    about = {"name": "baton", "annotations": annotations}
    ours = {"kind": "RayService", "metadata": about, "spec": spec}
    return yaml.safe_dump_all([{"kind": "Service", "metadata": {"name": "baton"}}, ours])


def test_the_command_reads_manifests_and_says_what_comes_of_each_change(tmp_path: Path) -> None:
    (tmp_path / "old").write_text(manifest(service()))
    (tmp_path / "new").write_text(manifest(service(rayVersion="2.61.0"), team="a"))

    result = CliRunner().invoke(app, ["k8s", "diff", f"{tmp_path}/old", f"{tmp_path}/new"])

    assert result.exit_code == 0
    assert 'metadata.annotations.team: nothing -> "a"' in result.output
    assert 'rayClusterConfig.rayVersion: "2.60.0" -> "2.61.0"' in result.output
    assert result.output.startswith("NEW CLUSTER")
    assert "a new cluster comes up beside the old one" in result.output


def test_the_command_refuses_a_configuration_that_the_application_would(tmp_path: Path) -> None:
    new = yaml.safe_load(service()["serveConfigV2"])
    args = {"model": "demo", "gateway": {"grpc_port": 8000}}
    new["applications"][0] |= {"import_path": "baton.platform.serve_app:app", "args": args}
    (tmp_path / "old").write_text(manifest(service()))
    (tmp_path / "new").write_text(manifest(service() | {"serveConfigV2": yaml.safe_dump(new)}))

    result = CliRunner().invoke(app, ["k8s", "diff", f"{tmp_path}/old", f"{tmp_path}/new"])

    assert result.exit_code == 2
    assert "new: config: " in result.output
    assert "gateway.port and gateway.grpc_port must differ" in result.output


def test_the_command_renders_values_with_helm_and_asks_for_the_chart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("base", "old", "new"):
        (tmp_path / name).write_text("config: {}\n")
    (tmp_path / "manifest").write_text(manifest(service()))
    helm = tmp_path / "helm"
    helm.write_text(f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\ncat {tmp_path}/manifest\n')
    helm.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    old, new = (f"{tmp_path}/base,{tmp_path}/{name}" for name in ("old", "new"))
    command = ["k8s", "diff", old, new]

    without = CliRunner().invoke(app, command)
    rendered = CliRunner().invoke(app, [*command, "--chart", "helm/baton"])

    assert without.exit_code == 2
    assert "--chart" in without.output
    assert rendered.output.strip() == "nothing changes"
    assert (tmp_path / "asked").read_text().splitlines() == [
        f"template baton helm/baton --values={tmp_path}/base --values={tmp_path}/{name}"
        for name in ("old", "new")
    ]


def test_a_file_that_is_not_there_is_told_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "old").write_text(manifest(service()))

    result = CliRunner().invoke(
        app, ["k8s", "diff", f"{tmp_path}/old", f"{tmp_path}/old,{tmp_path}/none"]
    )

    assert result.exit_code == 2
    assert f"cannot read {tmp_path}/none" in "".join(result.output.split("\n"))


PODS_HAVE_IT_TOO = {
    "gateway.grpc_port", "gateway.port", "gateway.tls_cert_file", "metrics.decode_port",
    "metrics.enabled", "metrics.gateway_port", "metrics.prefill_port",
}  # fmt: skip
"""Settings that ports and probes of pods follow, as docs/kubernetes.md says."""


def other_than(value: Any) -> Any:
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return f"{value}x"
    return None


@pytest.mark.wide
def test_no_setting_changes_pods_but_those_that_are_known_to() -> None:
    from tests.helm.chart import RenderFailed, render

    cluster = render().one("RayService")["spec"]["rayClusterConfig"]
    num_rendered, found = 0, set()
    for path, setting in settings().items():
        value: Any = other_than(setting.default)
        for key in reversed(path.split(".")):
            value = {key: value}
        try:
            changed = render({"config": value}).one("RayService")["spec"]["rayClusterConfig"]
        except RenderFailed:
            continue  # it is no value of this setting
        num_rendered += 1
        if changed != cluster:
            found.add(path)

    assert num_rendered > 150
    assert found == PODS_HAVE_IT_TOO
