"""The chart as the real Helm renders it.

`helm_python` has Helm's engine inside. It is asked by its private entrance, in this one place: the
public one takes neither API versions nor a chart's version.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
CHART = ROOT / "helm" / "baton"
OPERATED = tuple(
    f"monitoring.coreos.com/v1/{kind}"
    for kind in ("ServiceMonitor", "PodMonitor", "PrometheusRule")
)
"""What a cluster with the Prometheus operator knows besides."""
KUBE = "1.33"

helm = pytest.importorskip(
    "helm_python", reason="no wheel of helm-python-sdk for this Python or platform"
)

Values = Mapping[str, Any]
Manifest = dict[str, Any]


class RenderFailed(Exception):
    """With what Helm, or the chart, says."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    name: str = "rel"
    namespace: str = "prod"
    kube: str = KUBE
    api_versions: Sequence[str] = ()
    is_upgrade: bool = False
    chart: Path = CHART
    path: str = CHART.name
    """Of the chart that is looked at: `umbrella/charts/alias`."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """Manifests by their template, in the order of the file."""

    by_template: Mapping[str, Sequence[Manifest]]
    notes: str = field(repr=False)

    def __iter__(self) -> Iterator[Manifest]:
        return (one for found in self.by_template.values() for one in found)

    def one(self, kind: str, name: str | None = None) -> Manifest:
        [found] = [one for one in self if one["kind"] == kind and name in (None, _name(one))]
        return found


def render(values: Values | None = None, release: Release | None = None) -> Rendered:
    """Raises RenderFailed, also for values that the schema refuses."""
    texts = render_texts(values or {}, release or Release())
    notes = texts.pop("templates/NOTES.txt")
    found = {
        path: [one for one in yaml.load_all(text, Loader=yaml.CSafeLoader) if one]
        for path, text in texts.items()
    }
    return Rendered(found, notes)


def render_texts(values: Values, wanted: Release) -> dict[str, str]:
    """What `helm template` prints, by the template. Raises RenderFailed."""
    options = {
        "name": wanted.name,
        "namespace": wanted.namespace,
        "kube_version": f"v{wanted.kube}.0",
        "api_versions": list(wanted.api_versions),
        "is_upgrade": wanted.is_upgrade,
    }
    with helm.Chart.load(str(wanted.chart)) as chart:
        try:
            answer = helm._native.call_string(
                "helm_render", chart._raw(), json.dumps(values), json.dumps(options)
            )
        except helm.HelmError as error:
            raise RenderFailed(str(error)) from None
    texts: dict[str, str] = json.loads(answer)
    start = f"{wanted.path}/"
    return {
        path.removeprefix(start): text for path, text in texts.items() if path.startswith(start)
    }


def read_yaml(path: Path) -> Any:
    """By libyaml, which takes a tenth of the time."""
    return yaml.load(path.read_text(), Loader=yaml.CSafeLoader)


def profiles() -> dict[str, Any]:
    """The values of each of the chart's profiles, by its name."""
    files = sorted((CHART / "ci").glob("*-values.yaml"))
    return {file.name.removesuffix("-values.yaml"): read_yaml(file) for file in files}


def everything() -> dict[str, Any]:
    """Values that bring every object and every optional field."""
    values: dict[str, Any] = read_yaml(Path(__file__).with_name("everything.yaml"))
    return values


def all_values() -> dict[str, Any]:
    return {**profiles(), "everything": everything()}


def _name(manifest: Manifest) -> str:
    return str(manifest["metadata"]["name"])
