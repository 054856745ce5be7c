"""`baton explain planner`, as people see it."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

import pytest
from rich.console import Console
from typer.testing import CliRunner

from baton.platform.cli.main import app
from baton.platform.cli.terminal.planner_view import show_planner
from baton.platform.observe.gateway_pages import GatewayPages

CHANGE = {
    "decided_at": 1e9,
    "before": {"prefill": 1, "decode": 1},
    "after": {"prefill": 3, "decode": 1},
    "outcome": "scaled",
    "reasons": ["prefill: 1 -> 3; [bold] is no markup"],
    "load": None,
}
TOLD: dict[str, Any] = {
    "is_enabled": True,
    "mode": "scale",
    "promise": {"ttft_s": 1.5, "itl_s": 0.1, "share": 0.9},
    "gateways": {"heard": 1, "wanted": 2},
    "pools": {"prefill": {"planned": 3, "wanted": 3, "ready": 1, "draining": 0}},
    "latest": CHANGE,
    "changes": [CHANGE] * 30,
}


def shown(told: dict[str, Any]) -> str:
    console = Console(file=StringIO(), width=120)
    show_planner(console, told)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_the_pools_the_last_decision_and_changes_are_told_with_their_reasons() -> None:
    text = shown(TOLD)

    assert "1 of 2 gateways heard" in text
    assert "prefill 1 -> 3, decode 1 -> 1: scaled" in text
    assert "[bold] is no markup" in text and "and 10 before" in text
    assert "decided nothing yet" in shown({**TOLD, "latest": None, "changes": []})
    assert "planner.enabled: true" in shown({"is_enabled": False})


def test_what_worker_groups_wait_for_is_told_or_why_nobody_knows() -> None:
    why = "decode: 1 of 2 pods are not up ([0/3 nodes])"
    wait = {"cause": "pods", "why": why, "since": 1e9}
    done = [{"at": 1e9, "what": "decode: 1 -> 2 pods"}]

    text = shown({**TOLD, "groups": {"looked_at": 1e9, "waits": [wait], "done": done}})

    assert "pods: decode: 1 of 2 pods are not up ([0/3 nodes])" in text
    assert "decode: 1 -> 2 pods" in text
    assert why in shown(
        {"is_enabled": False, "groups": {"looked_at": 1, "waits": [wait], "done": []}}
    )
    well: dict[str, Any] = {"looked_at": None, "waits": [], "done": []}
    assert "not looked at yet: as they are wanted" in shown({**TOLD, "groups": well})
    assert "no answer" in shown({**TOLD, "groups": {"trouble": "no answer"}})


def test_the_command_asks_the_operators_page(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(GatewayPages, "get", lambda self, path: {**TOLD, "path": path})

    told = CliRunner().invoke(app, ["explain", "planner", "--url", "http://here", "--json"])

    assert json.loads(told.output)["path"] == "/debug/planner"
