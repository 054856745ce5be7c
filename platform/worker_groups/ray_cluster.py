"""Reads the Ray cluster's state from its dashboard, like KubeRay's operator."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from baton.core.errors import Unavailable
from baton.platform.cluster.applications.serve_document import IMPORT_PATH, configuration
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.live import Plain, registry_names

TIMEOUT_S = 10.0
MOST_ACTORS = 10_000
"""Ray's limit of one listing."""
LEAVING = "DELETING"

APPLICATIONS = "/api/serve/applications/"
ACTORS = (
    f"/api/v0/actors?limit={MOST_ACTORS}"
    "&filter_keys=state&filter_predicates=!%3D&filter_values=DEAD"
)
NODES = f"/api/v0/nodes?limit={MOST_ACTORS}"


@dataclass(frozen=True, slots=True)
class Running:
    """One look at it."""

    document: Plain
    """Serve's document of the application that nodes are made for."""
    config: DeploymentConfig
    busy_ips: frozenset[str]
    """Addresses of nodes with something on them that a removal would end."""
    registry_ips: frozenset[str]
    """Addresses of nodes with a registry, which starts anew elsewhere and has lost nothing, but who
    may be spared it is."""


class RayCluster(Protocol):
    def look(self) -> Running | None:
        """None without an application that nodes are made for. Raises Unavailable."""


@dataclass(frozen=True, slots=True)
class Dashboard:
    url: str
    token: Callable[[], str]
    """Read anew for each request: a Secret may be rotated."""

    def look(self) -> Running | None:
        found = _application(self._ask(APPLICATIONS).get("applications") or {})
        if found is None:
            return None
        document, config = found
        registries = tuple(
            f":{config.ray.app_name}:{name}" for name in registry_names(config.registry.replicas)
        )
        ip_by_node = {
            node["node_id"]: node["node_ip"]
            for node in _listed(self._ask(NODES))
            if node["state"] == "ALIVE"
        }
        busy: set[str] = set()
        of_registry: set[str] = set()
        for actor in _listed(self._ask(ACTORS)):
            ip = ip_by_node.get(actor.get("node_id") or "")
            if ip is not None:
                is_registry = actor["class_name"].endswith(registries)
                (of_registry if is_registry else busy).add(ip)
        return Running(document, config, frozenset(busy), frozenset(of_registry))

    def _ask(self, path: str) -> Any:
        request = urllib.request.Request(self.url + path)
        try:
            if token := self.token():
                request.add_header("Authorization", f"Bearer {token}")
            with urllib.request.urlopen(request, timeout=TIMEOUT_S) as answer:
                return json.load(answer)
        except urllib.error.HTTPError as error:
            remedy = "; give Ray's token by RAY_AUTH_TOKEN" if error.code in (401, 403) else ""
            raise Unavailable(f"Ray's dashboard answers {error.code} to {path}{remedy}") from error
        except (OSError, ValueError) as error:  # away, too slow, or not its own words
            raise Unavailable(f"Ray's dashboard does not answer ({error})") from error


def _application(applications: Mapping[str, Any]) -> tuple[Plain, DeploymentConfig] | None:
    """Raises Unavailable if it is not clear for whom."""
    found: list[tuple[Plain, DeploymentConfig]] = []
    for details in applications.values():
        document = details.get("deployed_app_config")
        if details.get("status") == LEAVING or (document or {}).get("import_path") != IMPORT_PATH:
            continue
        config = configuration(document)
        if config.planner.nodes == "kuberay":
            found.append((document, config))
    if len(found) > 1:
        names = " and ".join(document["name"] for document, _ in found)
        raise Unavailable(f"{names} both have planner.nodes: kuberay; groups follow one of them")
    return found[0] if found else None


def _listed(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A complete listing; raises if it is truncated, since missing actors would count as gone."""
    told = (answer.get("data") or {}).get("result") or {}
    if not answer.get("result") or told.get("partial_failure_warning"):
        raise Unavailable(f"Ray tells only a part: {answer.get('msg') or told}")
    listed: list[dict[str, Any]] = told.get("result") or []
    if told.get("num_after_truncation", len(listed)) > len(listed) or len(listed) >= MOST_ACTORS:
        raise Unavailable(f"Ray tells {len(listed)} of more")
    return listed
