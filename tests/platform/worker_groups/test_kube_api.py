"""The requests as the `kubernetes` client sends them, to a server that speaks HTTP."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from typing import Any

import pytest
from tests.platform.worker_groups.fake_kube import Fault
from tests.platform.worker_groups.simulated_cluster import (
    CLUSTER,
    NAMESPACE,
    SERVICE,
    SimulatedCluster,
    config_of,
    group,
)
from tests.served import served

from baton.core.clock import ManualClock
from baton.core.errors import Unavailable
from baton.platform.cluster.applications.serve_document import application

kube_api = pytest.importorskip("baton.platform.worker_groups.kube_api")
following = pytest.importorskip("baton.platform.worker_groups.following")
from baton.platform.worker_groups.adapter import Adapter  # noqa: E402
from baton.platform.worker_groups.memory import EMPTY_FOR_S  # noqa: E402
from baton.platform.worker_groups.ray_cluster import ACTORS, NODES, Dashboard  # noqa: E402


def cluster() -> SimulatedCluster:
    groups = [group("prefill", "prefill", 1), group("decode", "decode", 2)]
    return SimulatedCluster(groups, config_of({"decode": 2}))


def test_pods_tell_which_of_a_groups_replicas_they_belong_to() -> None:
    groups = [group("prefill", "prefill", 1), group("decode", "decode", 2, numOfHosts=2)]
    ray = SimulatedCluster(groups, config_of({"decode": 4}))
    with ray.kube.serve() as url:
        pods = kube_api.connect(url, NAMESPACE, SERVICE).pods(CLUSTER)

    found = Counter(pod.replica for pod in pods if pod.group == "decode")
    assert len(found) == 2 and set(found.values()) == {2} and "" not in found
    assert [pod.replica for pod in pods if pod.group == "prefill"] == [""]


def test_an_adapter_over_http_grows_and_shrinks_and_tells_refusals_apart() -> None:
    ray = cluster()
    clock = ManualClock()
    with ray.kube.serve() as url:
        api = kube_api.connect(url, NAMESPACE, SERVICE)
        adapter = Adapter(api, ray, ("zone",), clock)
        ray.want({"decode": 2}, asked={"decode": 4})
        adapter.follow()
        ray.operate()
        assert ray.cluster_counts == ray.service_counts == {"prefill": 1, "decode": 4}
        ray.want({"decode": 1})
        ray.serve()
        for _ in range(2):
            adapter.follow()
            clock.advance(EMPTY_FOR_S + 1)
        ray.operate()
        adapter.follow()
        assert ray.cluster_counts == ray.service_counts == {"prefill": 1, "decode": 1}

        for status in (403, 404, 409, 410, 422, 500):
            ray.kube.faults.append(Fault("GET rayclusters", status))
            with pytest.raises(kube_api.KubeTrouble) as refused:
                api.cluster(CLUSTER)
            assert refused.value.status == status
        ray.kube.faults.append(Fault("PATCH rayclusters", 0, is_done=True))
        with pytest.raises(kube_api.KubeTrouble) as cut:
            api.patch_cluster(CLUSTER, [])
        assert cut.value.status == kube_api.AWAY
        assert ray.kube.patches[-1] == ("rayclusters", CLUSTER, []), "and once, not retried"
    assert ray.killed == []


def test_a_watch_wakes_at_a_change_and_begins_anew_where_it_is_told_that_it_missed_some(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kube_api, "WATCH_S", 1)
    monkeypatch.setattr(following, "BREATH_S", 0.01)
    monkeypatch.setattr(following, "PAUSE_S", 0.01)
    ray, ended, woken = cluster(), threading.Event(), threading.Event()
    ray.kube.oldest = ray.kube.version + 1  # 410 Gone, until something happens
    ray.kube.faults.append(Fault("GET rayservices", 403))
    with ray.kube.serve() as url:
        api = kube_api.connect(url, NAMESPACE, SERVICE)
        args = (api, kube_api.SERVICES, woken.set, ended)
        thread = threading.Thread(target=following.keep_watching, args=args, daemon=True)
        thread.start()
        assert woken.wait(120)
        with pytest.raises(kube_api.KubeTrouble) as gone:
            api.watch(kube_api.SERVICES, woken.set)
        assert gone.value.status == kube_api.GONE

        ray.kube.oldest = 0
        events: list[int] = []
        ray.write("rayservices", "decode", maxReplicas=5)

        def see() -> None:
            while not events:  # a watch that a busy machine held up may end without one
                api.watch(kube_api.SERVICES, lambda: events.append(1))

        seen = threading.Thread(target=see, daemon=True)
        seen.start()
        while seen.is_alive() and not events:
            ray.write("rayservices", "decode", maxReplicas=6)
            seen.join(0.05)
        ended.set()
        thread.join(120)
        seen.join(120)
    assert events
    assert not thread.is_alive()


@contextmanager
def dashboard(answers: dict[str, Any]) -> Iterator[str]:
    """Ray's, which wants its token."""

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *args: Any) -> None:
            pass

        def do_GET(self) -> None:
            is_known = self.headers["Authorization"] == "Bearer secret"
            body = json.dumps(answers.get(self.path, {})).encode()
            self.send_response(200 if is_known else 401)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

    with served(HTTPServer(("127.0.0.1", 0), Handler)) as url:
        yield url


def listed(*items: Any, of: int | None = None) -> Any:
    told = {
        "total": of or len(items),
        "num_after_truncation": of or len(items),
        "result": [*items],
        "partial_failure_warning": "",
    }
    return {"result": True, "msg": "", "data": {"result": told}}


def test_pods_are_busy_by_all_that_lives_on_them_but_the_registry_and_only_if_all_is_told() -> None:
    node = {"state": "ALIVE"}
    nodes = [{"node_id": name, "node_ip": f"10.0.0.{name}", **node} for name in "1234"]
    nodes[3]["state"] = "DEAD"
    actors = [
        {"class_name": "ServeReplica:baton:Decode", "node_id": "1"},
        {"class_name": "ServeReplica:baton:Registry", "node_id": "2"},
        {"class_name": "RankActor", "node_id": "3"},
        {"class_name": "ServeReplica:baton:Decode", "node_id": "4"},
        {"class_name": "ServeReplica:baton:Decode", "node_id": None},  # finds no place yet
    ]
    document = application(config_of({"decode": 2}))
    other = application(config_of({"decode": 2}, nodes="fixed")) | {"name": "other"}
    apps = {
        one["name"]: {"status": "RUNNING", "deployed_app_config": one} for one in (document, other)
    }
    answers = {
        "/api/serve/applications/": {"applications": apps},
        NODES: listed(*nodes),
        ACTORS: listed(*actors),
    }
    with dashboard(answers) as url:
        running = Dashboard(url, lambda: "secret").look()
        assert running is not None
        assert running.document == document
        assert running.busy_ips == {"10.0.0.1", "10.0.0.3"}
        assert running.registry_ips == {"10.0.0.2"}

        with pytest.raises(Unavailable, match="RAY_AUTH_TOKEN"):
            Dashboard(url, lambda: "").look()
        answers[ACTORS] = listed(*actors, of=10_001)
        with pytest.raises(Unavailable, match="of more"):
            Dashboard(url, lambda: "secret").look()
    with pytest.raises(Unavailable, match="does not answer"):
        Dashboard(url, lambda: "secret").look()
