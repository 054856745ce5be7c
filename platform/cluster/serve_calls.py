"""Exports clients' calls under the names of Ray Serve's metrics, for Serve's dashboards.

    call ends --> pending --> each PERIOD_S: counters, latencies --> Ray's agent of the node

No call passes through Serve, so Serve counts none. Baton's own series are on the gateway's port;
these are only among Ray's metrics, so nothing is exported twice.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections import Counter as Counts
from collections.abc import Callable
from dataclasses import dataclass, field

import ray
from ray import serve
from ray.serve import metrics as of_deployment
from ray.util.metrics import Counter, Gauge, Histogram

from baton.gateway.requests.reporting import Face
from baton.platform.config.live import DECODE

log = logging.getLogger(__name__)

PERIOD_S = 1.0
BOUNDS_MS = [
    1, 2, 5, 10, 20, 50, 100, 200, 300, 400, 500, 1e3, 2e3, 5e3, 1e4, 6e4, 12e4, 3e5, 6e5,
]  # fmt: skip
"""Bounds of latencies, equal to Serve's, or Ray would take the first of two that one process
names."""
SWITCH = "RAY_enable_metrics_collection"
LEFT = {"http": "499", "grpc": "CANCELLED"}
"""Serve's status for a client that left before the answer."""


@dataclass(frozen=True, slots=True)
class _Ended:
    face: Face
    path: str
    method: str
    status: str
    ms: float

    @property
    def is_error(self) -> bool:
        """Whether Serve counts it as an error; client errors are included."""
        return self.status != "OK" if self.face == "grpc" else self.status >= "400"

    @property
    def route(self) -> str:
        return self.path or self.method

    def tags(self, application: str, status: str = "status_code") -> dict[str, str]:
        told = {"route": self.route, "method": self.method, "application": application}
        return {**told, status: self.status}


class ServeCalls:
    """Serve's request metrics of one gateway; made and kept within its Serve replica."""

    def __init__(self) -> None:
        context = ray.get_runtime_context()
        self._application = serve.get_replica_context().app_name
        self._faces = {face: _FaceMetrics(face) for face in LEFT}
        self._node = {
            "node_id": context.get_node_id(),
            "node_ip_address": ray.util.get_node_ip_address(),  # type: ignore[no-untyped-call]
        }
        self._of_queue = {
            "deployment": DECODE,
            "application": self._application,
            "handle": "baton",
            "actor_id": context.get_actor_id() or "",
        }
        self._requests = of_deployment.Counter(
            "serve_deployment_request_counter",
            "The number of queries that have been processed in this replica.",
            ("route",),
        )
        self._errors = of_deployment.Counter(
            "serve_deployment_error_counter",
            "The number of exceptions that have occurred in this replica.",
            ("route", "exception_type"),  # type: ignore[arg-type]  # Ray means any tuple
        )
        self._latencies = of_deployment.Histogram(
            "serve_deployment_processing_latency_ms",
            "The latency for queries to be processed.",
            BOUNDS_MS,
            ("route",),
        )
        self._queued = Gauge(
            "serve_deployment_queued_queries",
            "The current number of queries to this deployment waiting to be assigned to a replica.",
            tuple(self._of_queue),
        )
        self._open = Counts[str]()
        self._pending: list[_Ended] = []

    def begins(self, face: Face) -> None:
        self._open[face] += 1

    def ended(self, face: Face, path: str, method: str, status: str, seconds: float) -> None:
        self._open[face] -= 1
        self._pending.append(_Ended(face, path, method, status or LEFT[face], 1e3 * seconds))

    async def keep(self, num_waiting: Callable[[], int]) -> None:
        """Report to Ray for ever. `num_waiting`: requests that have no place yet."""
        has_failed = False
        while True:
            try:
                self._report(num_waiting())
            except Exception:  # Ray's errors: these calls are dropped, so that they do not pile up
                if not has_failed:
                    log.exception("calls cannot be reported to Ray")
                has_failed = True
            await asyncio.sleep(PERIOD_S)

    def _report(self, num_waiting: int) -> None:
        pending, self._pending = self._pending, []
        for one in pending:
            face, tags = self._faces[one.face], one.tags(self._application)
            face.requests.inc(tags=tags)
            face.latencies.observe(one.ms, tags=tags)
            self._requests.inc(tags={"route": one.route})
            self._latencies.observe(one.ms, tags={"route": one.route})
            if one.is_error:
                face.errors.inc(tags=one.tags(self._application, "error_code"))
                self._errors.inc(tags={"route": one.route, "exception_type": one.status})
        for name, metrics in self._faces.items():
            metrics.open.set(self._open[name], tags=self._node)
        self._queued.set(num_waiting, tags=self._of_queue)


@dataclass(slots=True)
class _FaceMetrics:
    face: str
    requests: Counter = field(init=False)
    errors: Counter = field(init=False)
    latencies: Histogram = field(init=False)
    open: Gauge = field(init=False)

    def __post_init__(self) -> None:
        name, of_call = self.face, ("route", "method", "application")
        self.requests = Counter(
            f"serve_num_{name}_requests",
            f"The number of {name.upper()} requests processed.",
            (*of_call, "status_code"),
        )
        self.errors = Counter(
            f"serve_num_{name}_error_requests",
            f"The number of errored {name.upper()} responses.",
            (*of_call, "error_code"),
        )
        self.latencies = Histogram(
            f"serve_{name}_request_latency_ms",
            f"The end-to-end latency of {name.upper()} requests.",
            BOUNDS_MS,
            (*of_call, "status_code"),
        )
        self.open = Gauge(
            f"serve_num_ongoing_{name}_requests",
            f"The number of ongoing {name.upper()} requests.",
            ("node_id", "node_ip_address"),
        )


def are_ray_metrics_on() -> bool:
    """Whether Ray's metrics are on, by the variable that turns them off for all of Ray."""
    return os.environ.get(SWITCH, "1").lower() not in ("0", "false")
