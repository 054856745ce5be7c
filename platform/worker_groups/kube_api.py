"""The few requests to Kubernetes: a RayService, its RayCluster, their pods, labels of nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from kubernetes import client, watch
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from baton.core.errors import Unavailable
from baton.platform.worker_groups.groups import Manifest, Pod
from baton.platform.worker_groups.patches import Patch

GROUP, VERSION = "ray.io", "v1"
SERVICES, CLUSTERS = "rayservices", "rayclusters"
OF_SERVICE = "ray.io/originated-from-cr-name"
OF_CLUSTER, OF_GROUP, OF_TYPE = "ray.io/cluster", "ray.io/group", "ray.io/node-type"
OF_REPLICA = "ray.io/worker-group-replica-name"
TIMEOUT_S = (3.0, 10.0)
"""Seconds to connect, and to answer."""
WATCH_S = 240
"""The server ends a watch after so long; another begins."""
ENDED = ("Failed", "Succeeded")
COMING = ("ContainerCreating", "PodInitializing")
MANAGER = "baton-worker-groups"
GONE, AWAY = 410, 0
OVERTAKEN = (409, 422)
"""A conflict, and a `test` that failed."""


class KubeTrouble(Unavailable):
    """What Kubernetes refuses; `status` is HTTP's, or AWAY."""

    def __init__(self, status: int, told: str) -> None:
        super().__init__(told)
        self.status = status


@dataclass(frozen=True, slots=True)
class KubeApi:
    """Each method raises KubeTrouble."""

    custom: Any
    core: Any
    namespace: str
    service_name: str

    def service(self) -> Manifest:
        return self._get(SERVICES, self.service_name)

    def cluster(self, name: str) -> Manifest:
        return self._get(CLUSTERS, name)

    def pods(self, cluster: str) -> list[Pod]:
        selector = f"{OF_CLUSTER}={cluster},{OF_TYPE}=worker"
        listed = _told(
            self.core.list_namespaced_pod,
            self.namespace,
            label_selector=selector,
            _request_timeout=TIMEOUT_S,
        )
        return [_pod(one) for one in listed.items]

    def node_labels(self, name: str) -> Mapping[str, str]:
        node = _told(self.core.read_node, name, _request_timeout=TIMEOUT_S)
        return node.metadata.labels or {}

    def patch_service(self, patch: Patch) -> Manifest:
        return self._patch(SERVICES, self.service_name, patch)

    def patch_cluster(self, name: str, patch: Patch) -> Manifest:
        return self._patch(CLUSTERS, name, patch)

    def watch(self, plural: str, on_event: Callable[[], None]) -> None:
        """Returns when the server ends it. A watch only wakes: what is there is read anew, so one
        that missed something is begun again from what is there now."""
        if plural == SERVICES:
            chosen = {"field_selector": f"metadata.name={self.service_name}"}
        else:
            chosen = {"label_selector": f"{OF_SERVICE}={self.service_name}"}
        where = (GROUP, VERSION, self.namespace, plural)
        listing = self.custom.list_namespaced_custom_object
        listed = _told(listing, *where, **chosen, _request_timeout=TIMEOUT_S)

        def follow() -> None:
            events = watch.Watch().stream(
                listing,
                *where,
                **chosen,
                resource_version=listed["metadata"]["resourceVersion"],
                timeout_seconds=WATCH_S,
                _request_timeout=(TIMEOUT_S[0], WATCH_S + TIMEOUT_S[1]),
            )
            for _ in events:
                on_event()

        _told(follow)

    def _get(self, plural: str, name: str) -> Manifest:
        where = (GROUP, VERSION, self.namespace, plural, name)
        ask = self.custom.get_namespaced_custom_object
        found: Manifest = _told(ask, *where, _request_timeout=TIMEOUT_S)
        return found

    def _patch(self, plural: str, name: str, patch: Patch) -> Manifest:
        where = (GROUP, VERSION, self.namespace, plural, name)
        found: Manifest = _told(
            self.custom.patch_namespaced_custom_object,
            *where,
            patch,
            field_manager=MANAGER,
            _content_type="application/json-patch+json",  # else a list is sent as a merge patch
            _request_timeout=TIMEOUT_S,
        )
        return found


def connect(url: str | None, namespace: str, service_name: str) -> KubeApi:
    """Connect with the pod's own service account; `url`: to another server, without an account."""
    from kubernetes import config

    if url is None:
        config.load_incluster_config()
        settings = client.Configuration.get_default_copy()
    else:
        settings = client.Configuration(host=url)
    settings.retries = False  # each look is a try
    api = client.ApiClient(settings)
    return KubeApi(client.CustomObjectsApi(api), client.CoreV1Api(api), namespace, service_name)


def _told(ask: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    try:
        return ask(*args, **kwargs)
    except ApiException as error:
        raise KubeTrouble(error.status or AWAY, _why(error)) from error
    except (HTTPError, OSError) as error:
        raise KubeTrouble(AWAY, f"the API server does not answer ({error})") from error


def _why(error: Any) -> str:
    told = f"the API server answers {error.status} {error.reason}"
    if error.status == 403:
        return f"{told}; the account needs the Role that the chart makes"
    return told


def _pod(one: Any) -> Pod:
    status, meta = one.status, one.metadata
    return Pod(
        name=meta.name,
        group=(meta.labels or {}).get(OF_GROUP, ""),
        replica=(meta.labels or {}).get(OF_REPLICA, ""),
        ip=(status and status.pod_ip) or "",
        node=(one.spec and one.spec.node_name) or "",
        is_leaving=meta.deletion_timestamp is not None or bool(status and status.phase in ENDED),
        trouble=_trouble(status) if status else "",
    )


def _trouble(status: Any) -> str:
    for condition in status.conditions or ():
        if condition.type == "PodScheduled" and condition.status == "False":
            return condition.message or condition.reason or ""
    for container in (*(status.init_container_statuses or ()), *(status.container_statuses or ())):
        waiting = container.state and container.state.waiting
        if waiting and waiting.reason not in COMING:
            return f"{waiting.reason}: {waiting.message}" if waiting.message else waiting.reason
    return ""
