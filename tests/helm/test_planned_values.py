"""What `baton plan size --chart` writes is taken by the chart, with room for what was planned."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from tests.helm.chart import Manifest, render
from typer.testing import CliRunner

from baton.platform.cli.main import app
from baton.platform.cluster.applications.serve_document import configuration
from baton.platform.config.deployment import DeploymentConfig, override, read_config

ROLES = ("prefill", "decode")
LLAMA = ("llama-3.3-70b", "--apart", "--accelerator", "mi300x", "--rate", "10")
EXPERTS = (
    "deepseek-v3", "--apart", "--precision", "fp8", "--max-ranks", "32", "--rate", "20",
)  # fmt: skip
TOGETHER = ("llama-3.1-8b", "--together", "--accelerator", "l4", "--max-ranks", "4")
ON_CPUS = ("demo", "--accelerator", "cpu", "--rate", "1", "--input", "99", "--output", "20")


def gib(quantity: str) -> float:
    return float(quantity.removesuffix("Gi")) if quantity[-2] == "G" else gib_of_mi(quantity)


def gib_of_mi(quantity: str) -> float:
    return float(quantity.removesuffix("Mi")) / 1024


def container(group: Manifest) -> Manifest:
    found: Manifest = group["template"]["spec"]["containers"][0]
    return found


def num_devices(group: Manifest, resource: str) -> int:
    of_pod = int(container(group)["resources"]["limits"].get(resource, 0))
    return of_pod * int(group["replicas"]) * int(group.get("numOfHosts", 1))


@pytest.mark.parametrize(
    ("asked", "resource", "hosts"),
    [
        (LLAMA, "amd.com/gpu", {"prefill": 1, "decode": 1}),
        pytest.param(
            *(EXPERTS, "nvidia.com/gpu", {"prefill": 2, "decode": 4}), marks=pytest.mark.wide
        ),
        pytest.param(TOGETHER, "nvidia.com/gpu", {"decode": 1}, marks=pytest.mark.wide),
        pytest.param(ON_CPUS, "", {"decode": 1}, marks=pytest.mark.wide),
    ],
)
def test_the_charts_pods_have_room_for_the_plan(
    tmp_path: Path, asked: tuple[str, ...], resource: str, hosts: dict[str, int]
) -> None:
    files = tmp_path / "values.yaml", tmp_path / "baton.yaml"
    written = ("--chart", str(files[0]), "--yaml", str(files[1]), "--json")

    result = CliRunner().invoke(app, ["plan", "size", *asked, *written])

    assert result.exit_code == 0, result.output
    chosen = json.loads(result.stdout)["chosen"]
    spec = render(yaml.safe_load(files[0].read_text())).one("RayService")["spec"]
    groups = {one["groupName"]: one for one in spec["rayClusterConfig"]["workerGroupSpecs"]}
    assert {name: one.get("numOfHosts", 1) for name, one in groups.items()} == {
        "gateway": 1,
        **hosts,
    }
    wanted = chosen["accelerators"] if resource else 0
    assert sum(num_devices(one, resource) for one in groups.values()) == wanted
    for name in hosts:
        [shared, *_] = groups[name]["template"]["spec"]["volumes"]
        limit = gib(container(groups[name])["resources"]["limits"]["memory"])
        assert 0 < gib(shared["emptyDir"]["sizeLimit"]) < limit
    [told] = yaml.safe_load(spec["serveConfigV2"])["applications"]
    assert without_places(configuration(told)) == without_places(read_config(files[1]))


def without_places(config: DeploymentConfig) -> DeploymentConfig:
    """What the chart itself says of every deployment, aside."""
    default: Any = DeploymentConfig()
    aside = {f"{role}.placement": getattr(default, role).placement for role in (*ROLES, "gateway")}
    return override(config, {**aside, "gateway.host": default.gateway.host})
