"""What is done to the documents of a cluster's applications; Serve is only asked and told."""

from __future__ import annotations

import time
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
from ray import serve
from ray.exceptions import ActorAlreadyExistsError

from baton.core.replicas import Role
from baton.platform.cluster.applications import applications
from baton.platform.cluster.applications.applications import (
    apply_planned,
    apply_scaled,
    registry_time,
    start_serve,
)
from baton.platform.cluster.applications.serve_document import (
    CONTROLLER_OPTIONS,
    application,
    configuration,
)
from baton.platform.config.deployment import parse_config

NAME = "baton"
CONFIG = parse_config(
    {"planner": {"enabled": True}, "prefill": {"replicas": 2}, "decode": {"replicas": 2}}
)


class Serving:
    """One application, and the clock of its registry."""

    def __init__(self, now: float) -> None:
        self.document = application(CONFIG)
        self.now = now
        self.answers = True

    def served(self) -> dict[str, Any]:
        return {NAME: {"status": "RUNNING", "deployed_app_config": self.document}}

    def send(self, documents: list[Any]) -> None:
        [self.document] = documents

    def get_deployment_handle(self, deployment: str, app: str) -> Any:
        assert (deployment, app) == ("Registry", NAME)

        def result(timeout_s: float) -> float:
            if not self.answers:
                raise TimeoutError
            return self.now

        asked = SimpleNamespace(result=result)
        return SimpleNamespace(unix_time=SimpleNamespace(remote=lambda: asked))


@pytest.fixture
def serving(monkeypatch: pytest.MonkeyPatch) -> Serving:
    found = Serving(time.time() + 5000.0)
    monkeypatch.setattr(applications, "served", found.served)
    monkeypatch.setattr(applications, "_send", found.send)
    monkeypatch.setattr(applications, "sole_change", nullcontext)
    monkeypatch.setattr(applications, "serve", found)
    return found


def test_a_hold_is_of_the_pools_that_were_set_and_by_the_clock_of_the_registry(
    serving: Serving,
) -> None:
    apply_scaled(NAME, {"decode": 6}, 86_400.0)
    apply_scaled(NAME, {"prefill": 3, "gateway": 2}, 0.0)

    planner = configuration(serving.document).planner
    assert planner.held_until == {
        Role.DECODE: serving.now + 86_400.0,
        Role.PREFILL: serving.now,
    }
    serving.answers = False
    assert registry_time(NAME) == pytest.approx(time.time(), abs=100.0)


def test_the_planner_changes_a_pool_while_the_other_is_held_and_not_the_held_one(
    serving: Serving,
) -> None:
    apply_scaled(NAME, {"decode": 6}, 86_400.0)
    before = {Role.PREFILL: 2, Role.DECODE: 6}

    assert not apply_planned(NAME, before, {Role.PREFILL: 2, Role.DECODE: 3}, {})
    assert apply_planned(NAME, before, {Role.PREFILL: 4, Role.DECODE: 6}, {})

    assert configuration(serving.document).wanted_replicas == {Role.PREFILL: 4, Role.DECODE: 6}


@pytest.mark.parametrize(("is_own_cluster", "options"), [(True, None), (False, CONTROLLER_OPTIONS)])
def test_workers_that_stand_by_in_a_cluster_of_our_own_can_be_used(
    monkeypatch: pytest.MonkeyPatch, is_own_cluster: bool, options: Any
) -> None:
    """With an environment of its own, each actor of Serve would wait for a new process."""
    told: dict[str, Any] = {}
    monkeypatch.setattr(serve, "start", lambda **options: told.update(options))

    start_serve(is_own_cluster=is_own_cluster)

    assert told["controller_options"] == options


def test_of_two_who_start_serve_at_once_both_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there: list[str] = []

    def start(**options: Any) -> None:
        """As Serve does it: it looks for a controller, then makes one."""
        if not there:
            there.append("of another")
            raise ActorAlreadyExistsError("SERVE_CONTROLLER_ACTOR")
        there.append("connected")

    monkeypatch.setattr(serve, "start", start)

    start_serve()

    assert there == ["of another", "connected"]
