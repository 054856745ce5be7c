"""A deployment on somebody's cluster ends even where that cluster does not answer."""

from __future__ import annotations

import threading

import pytest
import ray
from ray import serve

from baton.platform.cli.runs import serve as serve_module
from baton.platform.config.deployment import DeploymentConfig, override


def test_a_controller_that_does_not_answer_holds_up_no_end(monkeypatch: pytest.MonkeyPatch) -> None:
    answer, told = threading.Event(), list[str]()

    def delete(name: str) -> None:
        told.append(name)
        if not answer.wait(10):
            told.append("waited for")

    monkeypatch.setattr(serve, "delete", delete)
    monkeypatch.setattr(ray, "shutdown", lambda: told.append("Ray"))
    monkeypatch.setattr(serve_module, "_silence", lambda: None)
    monkeypatch.setattr(serve_module, "DELETE_TIMEOUT_S", 0.05)

    serve_module._shut_down(override(DeploymentConfig(), {"ray": {"address": "head:6379"}}))
    assert told == ["baton", "Ray"]
    answer.set()
