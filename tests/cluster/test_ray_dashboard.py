"""The request panels of Ray's own Serve dashboards, of calls that no proxy of Serve sees."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from contextlib import suppress

import httpx
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample
from ray.dashboard.modules.metrics.dashboards.serve_dashboard_panels import SERVE_GRAFANA_PANELS
from ray.dashboard.modules.metrics.dashboards.serve_deployment_dashboard_panels import (
    SERVE_DEPLOYMENT_GRAFANA_PANELS,
)
from tests.live_server import Server

from baton.client.client import BatonClient
from baton.client.errors import BatonClientError

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

LIMIT_S = 180.0
SELECTOR = re.compile(r"(\w*)\{([^}]*)\}")
MATCHER = re.compile(r'(\w+)\s*(=~|!~|!=|=)\s*(?:"([^"]*)"|\'([^\']*)\')')
NOT_HERE = ("multiplexed", "in_backoff")
"""Several models in one replica; calls that Serve's own handles try again."""
GROUPING = re.compile(r"\bby \(([^)]*)\)")


def queries() -> Iterator[tuple[str, str]]:
    """Of all panels about requests and replicas, each with its panel's title."""
    for panel in (*SERVE_GRAFANA_PANELS, *SERVE_DEPLOYMENT_GRAFANA_PANELS):
        for target in panel.targets:
            expr = target.expr.format(global_filters='session!="none"')
            if "ray_serve_" in expr and not any(word in expr for word in NOT_HERE):
                yield panel.title, expr


def selected(expr: str, samples: list[Sample]) -> list[Sample]:
    """What a query reads, its variables set to all. Those it groups by, they must have."""
    found = SELECTOR.findall(expr)
    assert len(found) == 1, expr
    [(name, inside)] = found
    matchers = [(label, op, one or other) for label, op, one, other in MATCHER.findall(inside)]
    if name:
        matchers.append(("__name__", "=", name))
    grouping = GROUPING.search(expr)
    labels = {one.strip() for one in grouping[1].split(",")} if grouping else set[str]()
    return [
        sample
        for sample in samples
        if labels <= sample.labels.keys()
        and all(_fits({**sample.labels, "__name__": sample.name}, *one) for one in matchers)
    ]


def _fits(labels: dict[str, str], label: str, op: str, value: str) -> bool:
    told = labels.get(label, "")
    value = re.sub(r"\$\w+", ".*", value).replace("\\\\", "\\")
    is_same = told == value if op in ("=", "!=") else re.fullmatch(value, told) is not None
    return is_same == (not op.startswith("!"))


def find_page(server: Server) -> Callable[[], list[Sample]] | None:
    for process in server.processes():
        with suppress(psutil.Error):
            if "DashboardAgent" not in " ".join(process.cmdline()):
                continue
            for one in process.net_connections("tcp"):
                if one.status != psutil.CONN_LISTEN:
                    continue
                url = f"http://127.0.0.1:{one.laddr.port}/metrics"
                with suppress(httpx.HTTPError, UnicodeDecodeError):
                    if "ray_serve_" in httpx.get(url, timeout=10).text:
                        return lambda: _read(url)
    return None


def _read(url: str) -> list[Sample]:
    families = text_string_to_metric_families(httpx.get(url, timeout=60).text)
    return [sample for family in families for sample in family.samples]


def calls(samples: list[Sample], route: str) -> float:
    return sum(
        sample.value
        for sample in samples
        if sample.name == "ray_serve_num_http_requests_total"
        and (sample.labels["application"], sample.labels["route"]) == ("baton", route)
    )


def settled(server: Server, read: Callable[[], list[Sample]], route: str) -> list[Sample]:
    """Once a call of this route, the first, is told, those that ended before it are told, too."""
    assert not calls(read(), route)
    assert httpx.post(f"{server.url}{route}", json={}, timeout=60).status_code == 400
    samples: list[Sample] = []

    def is_told(found: list[Sample]) -> bool:
        samples[:] = found
        return calls(found, route) == 1

    until_told(read, is_told)
    return samples


def until_told(read: Callable[[], list[Sample]], is_told: Callable[[list[Sample]], bool]) -> None:
    deadline = time.monotonic() + LIMIT_S
    while not is_told(read()):
        assert time.monotonic() < deadline, "it was not told in time"
        time.sleep(0.5)


def agent_page(server: Server) -> Callable[[], list[Sample]]:
    """What Ray's agent of the node gives Prometheus, wherever it listens, once it has any."""
    deadline = time.monotonic() + LIMIT_S
    while (read := find_page(server)) is None:
        assert time.monotonic() < deadline, "no agent of Ray exports metrics"
        time.sleep(0.5)
    return read


def test_every_request_panel_of_rays_serve_dashboards_has_its_series(server: Server) -> None:
    body = {"prompt": "def add(a, b):", "max_tokens": 3}
    with BatonClient(server.grpc_target) as sdk:
        sdk.generate("def add(a, b):", max_tokens=3)
        with pytest.raises(BatonClientError):
            sdk.generate("def add(a, b):", top_p=2.0)
    for each in (body, {**body, "max_tokens": -1}):
        httpx.post(f"{server.url}/v1/completions", json=each, timeout=60)
    asked = list(queries())
    assert len(asked) > 25
    read = agent_page(server)
    missing = [title for title, _ in asked]

    def all_are_there(samples: list[Sample]) -> bool:
        missing[:] = [f"{title}: {expr}" for title, expr in asked if not selected(expr, samples)]
        return not missing

    with suppress(AssertionError):
        until_told(read, all_are_there)
    assert not missing

    before = calls(settled(server, read, "/v1/embeddings"), "/v1/completions")
    for _ in range(3):
        httpx.post(f"{server.url}/v1/completions", json=body, timeout=60)
    httpx.get(f"{server.url}/ready", timeout=60)
    told = settled(server, read, "/v1/messages")
    assert calls(told, "/v1/completions") == before + 3, "each once, and probes not"
