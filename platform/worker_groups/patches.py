"""Changes of a RayCluster and of its RayService as JSON patches (RFC 6902).

Each tests that the object is the one that was looked at, and each place that it holds the group
that is meant: whoever was faster makes it fail as a whole. A merge patch would drop what it does
not say of a list's elements: their pods' template.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from baton.platform.worker_groups.groups import Manifest
from baton.platform.worker_groups.resizing import Resize

Patch = list[dict[str, Any]]

CLUSTER, SERVE = "rayClusterConfig", "serveConfigV2"


def cluster_patch(cluster: Manifest, resizes: Sequence[Resize], there: Collection[str]) -> Patch:
    """`there`: names of all pods, also of those that are leaving. Who leaves stays named until it
    has left, or KubeRay counts it among those that run, and deletes another."""
    patch = _same(cluster)
    places = _places(cluster["spec"])
    for one in resizes:
        path, spec = f"/spec/workerGroupSpecs/{places[one.group][0]}", places[one.group][1]
        named = (spec.get("scaleStrategy") or {}).get("workersToDelete") or ()
        still = [name for name in named if name in there and name not in one.victims]
        patch += [
            _test(f"{path}/groupName", one.group),
            _add(f"{path}/replicas", one.replicas),
            _add(f"{path}/scaleStrategy", {"workersToDelete": [*still, *one.victims]}),
        ]
    return patch


def floor_patch(cluster: Manifest, resizes: Sequence[Resize]) -> Patch:
    """A patch of the RayCluster alone: what its autoscaler owns is not touched, and the RayService
    keeps what a person wants at least."""
    patch = _same(cluster)
    places = _places(cluster["spec"])
    for one in resizes:
        path = f"/spec/workerGroupSpecs/{places[one.group][0]}"
        patch += [_test(f"{path}/groupName", one.group), _add(f"{path}/minReplicas", one.replicas)]
    return patch


def service_patch(
    service: Manifest, replicas: Mapping[str, int], serve_config: str | None = None
) -> Patch:
    patch = _same(service)
    places = _places(service["spec"][CLUSTER])
    for group, number in replicas.items():
        path = f"/spec/{CLUSTER}/workerGroupSpecs/{places[group][0]}"
        patch += [_test(f"{path}/groupName", group), _add(f"{path}/replicas", number)]
    if serve_config is not None:
        patch.append({"op": "replace", "path": f"/spec/{SERVE}", "value": serve_config})
    return patch


def _places(cluster_spec: Mapping[str, Any]) -> dict[str, tuple[int, Mapping[str, Any]]]:
    groups: Iterator[tuple[int, Any]] = enumerate(cluster_spec.get("workerGroupSpecs") or ())
    return {spec["groupName"]: (place, spec) for place, spec in groups}


def _same(manifest: Manifest) -> Patch:
    return [_test("/metadata/resourceVersion", manifest["metadata"]["resourceVersion"])]


def _test(path: str, value: Any) -> dict[str, Any]:
    return {"op": "test", "path": path, "value": value}


def _add(path: str, value: Any) -> dict[str, Any]:
    return {"op": "add", "path": path, "value": value}
