"""The chart as Helm renders it: profiles on several versions of Kubernetes, and its own suites."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.helm.chart import (
    CHART,
    OPERATED,
    Manifest,
    Release,
    Rendered,
    all_values,
    everything,
    helm,
    profiles,
    render,
)
from tests.helm.crds import is_defined, mistakes, shared
from tests.helm.generate import (
    chart_version,
    generated,
    pods_by_version,
    pods_digest,
    rendered,
)
from tests.helm.unit_suite import Case, read_suite, run

from baton.platform.cluster.applications.serve_document import application, configuration
from baton.platform.config.deployment import override, parse_config
from baton.platform.kubernetes.upgrade import Outcome, predict
from baton.platform.kubernetes.values.tree import default_config

kubernetes_validate = pytest.importorskip("kubernetes_validate")

KUBES = ("1.29", "1.33", "1.37")
CUSTOM = tuple(
    f"{group}/"
    for group in (
        "cert-manager.io", "gateway.networking.k8s.io", "inference.networking.k8s.io",
        "monitoring.coreos.com", "ray.io",
    )
)  # fmt: skip
"""Groups of what others define."""
CASES = [case for path in sorted((CHART / "tests").glob("*.yaml")) for case in read_suite(path)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_a_case_of_the_charts_own_suites_passes(case: Case) -> None:
    run(case)


@pytest.mark.parametrize("kube", KUBES)
@pytest.mark.parametrize("name", all_values())
def test_every_field_of_every_object_is_one_that_kubernetes_knows(name: str, kube: str) -> None:
    values = all_values()[name]
    if kube == "1.29":  # claims are written otherwise there
        values.get("workerDefaults", {}).pop("resourceClaims", None)
    rendered = render(values, Release(kube=kube, api_versions=OPERATED))

    custom = [one for one in rendered if one["apiVersion"].startswith(CUSTOM)]
    builtin = [one for one in rendered if one not in custom]
    assert len(builtin) > 5
    for manifest in [*builtin, *pods_as_templates(rendered)]:
        kubernetes_validate.validate(manifest, kube, strict=True)
    defined = [one for one in custom if is_defined(one)]
    assert {one["kind"]: mistakes(one) for one in defined if mistakes(one)} == {}
    assert shared() is None or defined == custom
    names = [(one["kind"], one["metadata"]["name"]) for one in rendered]
    assert len(names) == len(set(names))


def test_the_values_with_everything_bring_every_object_of_the_chart() -> None:
    for template, objects in render(
        everything(), Release(api_versions=OPERATED)
    ).by_template.items():
        is_of_the_other_way = template == "templates/certificate.yaml"  # than the Secret of `tls`
        assert bool(objects) != is_of_the_other_way, template


def test_ray_start_knows_every_option_that_it_is_given() -> None:
    from ray.scripts.scripts import start as ray_start  # a second, which no other test has to spend

    known = {option for parameter in ray_start.params for option in parameter.opts}
    cluster = render().one("RayService")["spec"]["rayClusterConfig"]

    for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
        assert {f"--{option}" for option in group["rayStartParams"]} <= known


RICH: dict[str, Any] = {
    "security": {"keys": "api-keys"},
    "config": {
        "log_level": "warning",
        "prefill": {"replicas": 0},
        "decode": {"max_open": 7, "cache": {"block_size": 32}},
        "chaos": {"seed": 3},
        "planner": {"enabled": True, "idle_s": 600},
        "registry": {"replicas": 3},
        "health": {"drain_s": 45.5},
        "ray": {"app_name": "llm", "runtime_env": {"env_vars": {"A": "b"}}},
        "gateway": {
            "max_waiting": 5,
            "tenants": {
                "a.b": {"api_keys": ["file:/etc/baton/keys/a"], "kv_share": 0.5, "weight": 2},
                "c": {"api_keys": ["env:C"]},
            },
        },
    },
}
"""Values whose settings go every way there is."""


@pytest.mark.parametrize("profile", [*profiles(), "rich"])
def test_serve_is_told_what_baton_deploy_would_tell_it(profile: str) -> None:
    values = {**profiles(), "rich": RICH}[profile]
    config = parse_config(helm_merged(default_config(), values["config"]))
    if "collector" in values:
        assert not config.tracing.otlp_endpoint
        collected = {"otlp_endpoint": "http://rel-baton-collector.prod:4317", "sample_ratio": 0.1}
        config = override(config, {f"tracing.{key}": one for key, one in collected.items()})

    [told] = yaml.safe_load(render(values).one("RayService")["spec"]["serveConfigV2"])[
        "applications"
    ]

    wanted = application(config)
    assert configuration(told) == configuration(wanted) == config
    assert parse_config(told["args"]) == parse_config(wanted["args"])
    counted = ("num_replicas", "autoscaling_config")
    of_each = ("name", *counted, "health_check_period_s", "graceful_shutdown_timeout_s")
    assert [{key: one.get(key) for key in of_each} for one in told["deployments"]] == [
        {key: one.get(key) for key in of_each} for one in wanted["deployments"]
    ]
    assert {key: value for key, value in told.items() if key not in ("args", "deployments")} == {
        key: value for key, value in wanted.items() if key not in ("args", "deployments")
    }


@pytest.mark.parametrize(
    ("changes", "outcome"),
    [
        ({"decode": {"replicas": 2}, "gateway": {"max_waiting": 9}}, Outcome.IN_PLACE),
        ({"decode": {"cache": {"block_size": 32}}}, Outcome.RESTART),
    ],
)
def test_a_setting_that_is_told_in_place_restarts_nobody(changes: Any, outcome: Outcome) -> None:
    old, new = render(), render({"config": changes})

    effects = predict(old.one("RayService")["spec"], new.one("RayService")["spec"])

    assert {effect.outcome for effect in effects} == {outcome}


RESTRICTED_VOLUMES = {
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim",
    "projected", "secret",
}  # fmt: skip


@pytest.mark.parametrize("name", ["kind", "wide-ep", "everything"])
def test_pods_meet_the_restricted_standard_but_for_rdma(name: str) -> None:
    """Ray's, and those of the adapter, the collector and the chart's own test."""
    rendered = render(all_values()[name])
    own = [one["spec"]["template"] for one in rendered if one["kind"] == "Deployment"]
    tests = [one for one in rendered if one["kind"] == "Pod"]

    assert len(own) == 2 * (name == "everything") and len(tests) == 1
    for pod in [*pods(rendered), *own, *tests]:
        spec = pod["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["runAsUser"] > 0
        assert spec["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault"
        assert not any(spec.get(key) for key in ("hostNetwork", "hostPID", "hostIPC"))
        kinds = {key for volume in spec.get("volumes", ()) for key in volume if key != "name"}
        assert kinds <= RESTRICTED_VOLUMES
        for container in [*spec["containers"], *spec.get("initContainers", ())]:
            security = container["securityContext"]
            assert security["allowPrivilegeEscalation"] is False
            assert security["readOnlyRootFilesystem"] is True
            assert security["capabilities"]["drop"] == ["ALL"]
            has_rdma = "rdma/ib" in container["resources"]["limits"]
            assert security["capabilities"].get("add", []) == ["IPC_LOCK"] * has_rdma
            assert not any("hostPort" in port for port in container.get("ports", ()))


def test_another_version_of_the_chart_leaves_the_cluster_byte_for_byte(tmp_path: Path) -> None:
    shutil.copytree(CHART, tmp_path / "baton")
    about = yaml.safe_load((CHART / "Chart.yaml").read_text())
    about |= {"version": "9.9.9", "appVersion": "9.9.9"}
    (tmp_path / "baton" / "Chart.yaml").write_text(yaml.safe_dump(about))
    values = profiles()["pd-4node"]

    old = render(values)
    new = render(values, Release(chart=tmp_path / "baton", is_upgrade=True))

    assert old.one("ServiceAccount") != new.one("ServiceAccount")
    assert yaml.safe_dump(old.one("RayService")["spec"]) == yaml.safe_dump(
        new.one("RayService")["spec"]
    )


def test_the_notes_warn_of_gateways_that_ask_for_no_key() -> None:
    assert "no API key is asked for" in render().notes
    for kind in ("api_keys", "operator_keys"):
        keys = {"security": {"keys": "k"}, "config": {"gateway": {kind: ["env:KEYS"]}}}
        assert "no API key is asked for" not in render(keys).notes


def test_the_chart_passes_strict_lint() -> None:
    found = helm.lint(str(CHART), {}, strict=True, kube_version="v1.33.0")["messages"]

    assert [one for one in found if one["severity"] > 1] == []


def test_the_generated_files_are_those_of_make_chart() -> None:
    made = generated() | rendered()
    stale = [path.name for path, text in made.items() if path.read_text() != text]

    assert not stale, "run `make chart`"


def test_pods_change_with_a_version_that_says_so() -> None:
    recorded, version = pods_by_version(), chart_version()

    told = f"pods of a release that sets nothing are others than those of {version}: a new minor"
    assert recorded[version] == pods_digest(), f"{told} in Chart.yaml, and UPGRADING.md says why"
    assert f"## {version}" in (CHART / "UPGRADING.md").read_text()
    minors = {name.rpartition(".")[0]: digest for name, digest in reversed(recorded.items())}
    for name, digest in recorded.items():
        assert digest == minors[name.rpartition(".")[0]], f"{name} is a patch with other pods"


def helm_merged(below: dict[str, Any], above: dict[str, Any]) -> dict[str, Any]:
    """As Helm lays values over those of the chart."""
    merged = dict(below)
    for key, value in above.items():
        inner = merged.get(key)
        both = isinstance(inner, dict) and isinstance(value, dict)
        merged[key] = helm_merged(merged[key], value) if both else value
    return merged


def pods(rendered: Rendered) -> list[Manifest]:
    """Templates of all pods of the RayService."""
    cluster = rendered.one("RayService")["spec"]["rayClusterConfig"]
    groups: list[dict[str, Any]] = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [group["template"] for group in groups]


def pods_as_templates(rendered: Rendered) -> list[Manifest]:
    """The same as objects of a kind that Kubernetes itself has."""
    return [
        {"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "p"}, "template": pod}
        for pod in pods(rendered)
    ]
