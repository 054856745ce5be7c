"""The driver follows replicas through the registry, and gives up when starting anew is useless."""

from __future__ import annotations

import io
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from ray import serve
from ray.exceptions import RayError
from rich.console import Console
from rich.progress import Progress
from tests.gateway.fleet.known_replicas import make_replica

from baton.core.errors import DeadlineExceeded, InvalidConfig, Unavailable
from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import Membership, Role, StartingReplica
from baton.platform.cli.runs import deploy as deploy_module
from baton.platform.cli.runs.deploy import (
    GONE_LOOKS,
    SERVE_TIMEOUT_S,
    Watch,
    come_up,
    deploy,
    follow,
    wait_for,
)
from baton.platform.cli.terminal.progress import StartBars
from baton.platform.cli.terminal.start_report import StartReport
from baton.platform.cluster import deploy as cluster_deploy
from baton.platform.cluster.applications import applications
from baton.platform.config.deployment import DeploymentConfig, override


class Response:
    """What Serve hands out for a call."""

    def __init__(self, outcome: Callable[[], object]) -> None:
        self._outcome = outcome

    def result(self, *, timeout_s: float) -> object:
        return self._outcome()


def raising(error: Exception) -> Callable[[], object]:
    def outcome() -> object:
        raise error

    return outcome


def make_report(lines: list[str]) -> StartReport:
    bars = Progress(console=Console(file=io.StringIO()))
    return StartReport(lines.append, StartBars(bars))


def membership(*starting: StartingReplica) -> Membership:
    return Membership(incarnation=Epoch("r"), version=1, age_s=1.0, replicas=(), starting=starting)


LOADING = StartingReplica(
    replica_id=ReplicaId("decode-1"), role=Role.DECODE, stage="loading weights"
)


def test_an_actor_that_is_replaced_is_asked_anew() -> None:
    outcomes: list[Callable[[], object]] = [
        raising(TimeoutError()),
        raising(RayError()),
        lambda: (8000, 8001),
    ]
    num_asked = 0

    def ask() -> Response:
        nonlocal num_asked
        num_asked += 1
        return Response(lambda: outcomes.pop(0)())

    looks: list[int] = []
    assert wait_for(ask, lambda: looks.append(num_asked)) == (8000, 8001)
    assert (looks, num_asked) == ([1, 1], 2)


def test_what_a_new_attempt_would_meet_again_ends_the_start() -> None:
    lines: list[str] = []
    failed = LOADING.failed("no config.json", is_final=True)

    with pytest.raises(InvalidConfig, match="decode-1 failed while loading weights: no config"):
        follow(membership(failed), DeploymentConfig(), make_report(lines))


def test_what_may_go_better_next_time_is_only_said() -> None:
    lines: list[str] = []
    failed = LOADING.failed("MemoryError: ", is_final=False)

    follow(membership(failed), DeploymentConfig(), make_report(lines))

    assert lines == ["decode-1: failed while loading weights: MemoryError: "]


def test_serving_never_takes_the_place_of_an_application_of_the_same_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Which it would end when it ends itself."""
    monkeypatch.setattr(applications, "served", lambda: {"baton": {}})
    config = override(DeploymentConfig(), {"ray.address": "somewhere:6379"})

    with pytest.raises(InvalidConfig, match=r"already has an application 'baton'; .* --app-name"):
        deploy(config, Path(), make_report([]))


def test_serving_on_a_cluster_never_shares_a_port_with_an_application_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = {"other": {"status": "RUNNING", "deployments": {"Gateway": {}}}}
    monkeypatch.setattr(applications, "served", lambda: served)
    monkeypatch.setattr(applications, "gateway_ports", lambda name, timeout_s: (8000, 8001))
    monkeypatch.setattr(applications, "start_serve", lambda **_: pytest.fail("it goes on"))
    config = override(DeploymentConfig(), {"ray.address": "somewhere:6379"})

    with pytest.raises(InvalidConfig, match=r"gateway\.port: 8000 is a port of .* 'other'"):
        deploy(config, Path(), make_report([]))


def test_serving_ends_once_somebody_has_ended_the_application(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = [
        lambda: replace(membership(), age_s=60.0, replicas=(make_replica("decode-1"),)),
        raising(RuntimeError("the deployment is replaced")),
        lambda: replace(membership(), age_s=90.0),
        *[raising(TimeoutError())] * (2 * GONE_LOOKS),
    ]
    registry = SimpleNamespace(
        membership=SimpleNamespace(remote=lambda: Response(lambda: outcomes.pop(0)()))
    )
    running: dict[str, str] = {"baton": "RUNNING"}
    monkeypatch.setattr(serve, "get_deployment_handle", lambda *_: registry)
    monkeypatch.setattr(applications, "served", lambda timeout_s: running)
    watch = Watch(DeploymentConfig())

    for _ in range(3):
        watch.look()
    assert "decode-1 is gone: 0 of 1 decode replicas serve" in caplog.text

    running.clear()
    for _ in range(GONE_LOOKS - 1):  # a controller that is being replaced may list none
        watch.look()
    running["baton"] = "RUNNING"
    watch.look()
    running.clear()
    for _ in range(GONE_LOOKS - 1):
        watch.look()
    with pytest.raises(Unavailable, match="baton has been ended, by `baton undeploy`"):
        watch.look()


def test_a_controller_that_does_not_answer_in_time_is_told_once_and_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    outcomes = [*[raising(TimeoutError())] * (GONE_LOOKS + 1), membership, raising(TimeoutError())]
    registry = SimpleNamespace(
        membership=SimpleNamespace(remote=lambda: Response(lambda: outcomes.pop(0)()))
    )
    limits: list[float] = []

    def hang(timeout_s: float) -> None:
        limits.append(timeout_s)
        raise DeadlineExceeded

    monkeypatch.setattr(serve, "get_deployment_handle", lambda *_: registry)
    monkeypatch.setattr(applications, "served", hang)
    watch = Watch(DeploymentConfig())
    for _ in range(GONE_LOOKS + 1):
        watch.look()

    assert limits == [SERVE_TIMEOUT_S] * (GONE_LOOKS + 1)
    (told,) = caplog.messages
    assert "was given 5 s" in told

    watch.look()
    watch.look()  # in vain, after the registry has answered
    assert caplog.messages == [told, told]


def test_a_start_is_given_up_where_the_controller_stays_silent(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    answers: list[dict[str, object]] = [{}]  # it has built nothing yet

    def answer_once(timeout_s: float) -> dict[str, object]:
        if not answers:
            raise DeadlineExceeded("Serve's controller has not answered within 5 s")
        return answers.pop()

    monkeypatch.setattr(applications, "served", answer_once)
    monkeypatch.setattr(deploy_module, "SILENCE_S", 0.3)

    with pytest.raises(DeadlineExceeded, match=r"controller has not answered .* Ray's head hangs"):
        come_up(DeploymentConfig(), make_report([]))
    assert caplog.messages == [
        "Serve's controller has not answered within 5 s; it has 0.3 s in all"
    ]


def test_a_start_is_given_up_where_the_controller_takes_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_over, begun = threading.Event(), list[object]()
    calling: list[threading.Thread] = []

    def hang(**_: object) -> None:
        calling.append(threading.current_thread())
        is_over.wait(60)

    monkeypatch.setattr(applications, "start_serve", hang)
    monkeypatch.setattr(cluster_deploy, "build_app", lambda *_: serve.Application)
    monkeypatch.setattr(serve, "run_many", lambda targets, **_: begun.append(targets))
    monkeypatch.setattr(deploy_module, "SILENCE_S", 0.05)

    with pytest.raises(DeadlineExceeded, match="controller has not answered"):
        deploy(DeploymentConfig(), Path(), make_report([]))
    is_over.set()
    calling[0].join()
    assert not begun  # after it was ended
