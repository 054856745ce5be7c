"""As much of Kubernetes' API as Helm asks of it: what kinds there are, and objects of them.

Objects are taken as they come (`kubernetes_validate` and KubeRay's definitions judge them
elsewhere): what is shown here is which of them Helm makes, writes anew and deletes. A pod ends as
soon as it is made. What Helm keeps of a release it keeps in its own memory.
"""

from __future__ import annotations

import copy
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from tests.served import served

Manifest = dict[str, Any]
NAMESPACE = "prod"
PLURALS = {
    "v1": {
        "ConfigMap": "configmaps",
        "PersistentVolumeClaim": "persistentvolumeclaims",
        "Pod": "pods",
        "Secret": "secrets",
        "Service": "services",
        "ServiceAccount": "serviceaccounts",
    },
    "gateway.networking.k8s.io/v1": {
        "BackendTLSPolicy": "backendtlspolicies",
        "GRPCRoute": "grpcroutes",
        "HTTPRoute": "httproutes",
    },
    "cert-manager.io/v1": {"Certificate": "certificates"},
    "apps/v1": {"Deployment": "deployments"},
    "monitoring.coreos.com/v1": {
        "PodMonitor": "podmonitors",
        "PrometheusRule": "prometheusrules",
        "ServiceMonitor": "servicemonitors",
    },
    "inference.networking.k8s.io/v1": {"InferencePool": "inferencepools"},
    "networking.k8s.io/v1": {"Ingress": "ingresses", "NetworkPolicy": "networkpolicies"},
    "policy/v1": {"PodDisruptionBudget": "poddisruptionbudgets"},
    "ray.io/v1": {"RayCluster": "rayclusters", "RayService": "rayservices"},
    "rbac.authorization.k8s.io/v1": {
        "ClusterRole": "clusterroles",
        "ClusterRoleBinding": "clusterrolebindings",
        "Role": "roles",
        "RoleBinding": "rolebindings",
    },
}
OF_NO_NAMESPACE = ("clusterroles", "clusterrolebindings")
KIND_BY_PLURAL = {plural: kind for kinds in PLURALS.values() for kind, plural in kinds.items()}
REASONS = {403: "Forbidden", 404: "NotFound", 409: "AlreadyExists", 422: "Invalid"}


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


@dataclass
class ReleaseServer:
    objects: dict[tuple[str, str], Manifest] = field(default_factory=dict)
    """By plural and name: those of one namespace."""
    phase: str = "Succeeded"
    """How pods end."""
    refused: str = ""
    """The plural of what is not taken."""
    events: list[tuple[str, Manifest]] = field(default_factory=list)
    """Plurals and what watchers are told; the version is how many there were."""
    is_over: bool = False
    changed: threading.Condition = field(default_factory=threading.Condition)

    @property
    def version(self) -> int:
        return len(self.events)

    def uids(self) -> dict[tuple[str, str], str]:
        return {place: one["metadata"]["uid"] for place, one in self.objects.items()}

    def write(self, plural: str, name: str, manifest: Manifest) -> Manifest:
        if plural == self.refused:
            raise Refused(403, "no place")
        before = self.objects.get((plural, name), {}).get("metadata", {})
        kept = copy.deepcopy(manifest)
        if plural not in OF_NO_NAMESPACE:
            kept["metadata"]["namespace"] = NAMESPACE
        kept["metadata"] |= {
            "uid": before.get("uid", str(uuid.uuid4())),
            "resourceVersion": str(self.version + 1),
        }
        if plural == "pods":
            kept["status"] = {"phase": self.phase}
        self.objects[plural, name] = kept
        self._tell("MODIFIED" if before else "ADDED", plural, kept)
        return kept

    def _tell(self, event: str, plural: str, manifest: Manifest) -> None:
        self.events.append((plural, {"type": event, "object": copy.deepcopy(manifest)}))
        self.changed.notify_all()

    def answer(self, method: str, path: str, query: dict[str, str], body: Any) -> Manifest:
        steps = path.strip("/").split("/")
        if path == "/version":
            return {"major": "1", "minor": "33", "gitVersion": "v1.33.0"}
        if steps[0] == "openapi":
            return _openapi(steps[1:])
        if steps[-2:-1] == ["namespaces"]:
            return {"kind": "Namespace", "apiVersion": "v1", "metadata": {"name": steps[-1]}}
        if "namespaces" in steps:
            plural, *name = steps[steps.index("namespaces") + 2 :]
        elif any(plural in steps for plural in OF_NO_NAMESPACE):
            plural, *name = steps[3:]
        else:
            return _discovery(steps)
        with self.changed:
            return self._answer(method, plural, name[0] if name else "", query, body)

    def _answer(
        self, method: str, plural: str, name: str, query: dict[str, str], body: Any
    ) -> Manifest:
        found = self.objects.get((plural, name))
        if method == "POST":
            name = body["metadata"]["name"]
            if (plural, name) in self.objects:
                raise Refused(409, f"{plural} {name!r} already exists")
            return self.write(plural, name, body)
        if method == "GET" and not name:
            return self._listed(plural, query)
        if method == "PATCH":  # Helm writes the whole of what it manages: server-side apply
            return self.write(plural, name, body)
        if found is None:
            raise Refused(404, f"{plural} {name!r} not found")
        if method == "PUT":
            return self.write(plural, name, body)
        if method == "DELETE":
            del self.objects[plural, name]
            self._tell("DELETED", plural, found)
        return found

    def _listed(self, plural: str, query: dict[str, str]) -> Manifest:
        labels = dict(one.split("=") for one in query.get("labelSelector", "").split(",") if one)
        of_name = query.get("fieldSelector", "").removeprefix("metadata.name=")
        items = [
            one
            for (other, name), one in sorted(self.objects.items())
            if other == plural
            and of_name in ("", name)
            and labels.items() <= (one["metadata"].get("labels") or {}).items()
        ]
        kind = KIND_BY_PLURAL[plural]
        version = next(version for version, kinds in PLURALS.items() if kind in kinds)
        return {
            "kind": f"{kind}List",
            "apiVersion": version,
            "metadata": {"resourceVersion": str(self.version)},
            "items": items,
        }

    def news(self, since: int) -> list[tuple[str, Manifest]]:
        """Once there are any; none at the end."""
        with self.changed:
            self.changed.wait_for(lambda: self.is_over or self.version > since)
            return self.events[since:]

    @contextmanager
    def serve(self) -> Iterator[str]:
        """The text of a kubeconfig."""
        handler = type("Handler", (_Handler,), {"of": self})
        with served(ThreadingHTTPServer(("127.0.0.1", 0), handler)) as url:
            try:
                yield _kubeconfig(url)
            finally:
                with self.changed:
                    self.is_over = True
                    self.changed.notify_all()


def _discovery(steps: list[str]) -> Manifest:
    """Which groups, versions and kinds there are."""
    if steps == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"]}
    if steps == ["apis"]:
        named = [version for version in PLURALS if "/" in version]
        groups = [
            {"name": one.split("/")[0], "versions": [{"groupVersion": one, "version": "v1"}]}
            for one in named
        ]
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": groups}
    version = "/".join(steps[1:])
    if version not in PLURALS:
        raise Refused(404, f"no {'/'.join(steps)}")
    resources = [
        {
            "name": plural,
            "singularName": kind.lower(),
            "namespaced": plural not in OF_NO_NAMESPACE,
            "kind": kind,
            "verbs": ["create", "delete", "get", "list", "patch", "update", "watch"],
        }
        for kind, plural in PLURALS[version].items()
    ]
    return {"kind": "APIResourceList", "groupVersion": version, "resources": resources}


def _openapi(steps: list[str]) -> Manifest:
    """That fields are judged by the server: Helm would do it itself by schemas otherwise."""
    if steps == ["v3"]:
        paths = [f"apis/{one}" if "/" in one else f"api/{one}" for one in PLURALS]
        return {"paths": {path: {"serverRelativeURL": f"/openapi/v3/{path}"} for path in paths}}
    version = "/".join(steps[2:])
    group, _, number = version.rpartition("/")
    patch = {
        f"/{plural}/{{name}}": {
            "patch": {
                "x-kubernetes-group-version-kind": {
                    "group": group,
                    "version": number,
                    "kind": kind,
                },
                "parameters": [{"name": "fieldValidation", "in": "query"}],
                "responses": {},
            }
        }
        for kind, plural in PLURALS.get(version, {}).items()
    }
    return {"openapi": "3.0.0", "info": {"title": "here", "version": "1"}, "paths": patch}


class _Handler(BaseHTTPRequestHandler):
    of: ReleaseServer
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args: Any) -> None:
        pass

    def _answer(self) -> None:
        url = urlsplit(self.path)
        query = dict(parse_qsl(url.query))
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            if query.get("watch"):
                return self._watch(url.path.split("/")[-1], query)
            told = self.of.answer(self.command, url.path, query, json.loads(body) if body else None)
            self._tell(200, told)
        except OSError:  # who watched has left
            self.close_connection = True
        except Refused as error:
            status = error.status
            told = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "code": status}
            self._tell(status, told | {"reason": REASONS[status], "message": str(error)})

    do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = _answer

    def _watch(self, plural: str, query: dict[str, str]) -> None:
        if query.get("sendInitialEvents"):
            raise Refused(422, "lists are told by themselves")
        since = int(query["resourceVersion"])
        self.close_connection = True
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        while not self.of.is_over:
            news = self.of.news(since)
            since += len(news)
            for of, event in news:
                if of == plural:
                    self.wfile.write(json.dumps(event).encode() + b"\n")
                    self.wfile.flush()

    def _tell(self, status: int, told: Manifest) -> None:
        body = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


def _kubeconfig(url: str) -> str:
    return json.dumps(
        {
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{"name": "here", "cluster": {"server": url}}],
            "users": [{"name": "me", "user": {}}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "me"}}],
            "current-context": "here",
        }
    )
