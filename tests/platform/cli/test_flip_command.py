"""`baton flip` against something that answers like a gateway."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from typer.testing import CliRunner

from baton.core.errors import Unavailable
from baton.platform.cli.commands import flip as command
from baton.platform.cli.main import app
from baton.platform.observe.gateway_pages import GatewayPages

Row = dict[str, Any]

DRAINS = {"replica": "prefill-1", "is_ready": False, "flip": {"to": "decode", "failure": ""}}


def flip(
    monkeypatch: pytest.MonkeyPatch,
    role: str,
    pages: Sequence[tuple[Sequence[Row], Sequence[Row]] | None],
    *options: str,
) -> tuple[int, Sequence[str]]:
    """`pages`: the rows of prefill and of decode, each time status is asked for; None: it is not
    answered."""
    left = list(pages)

    def post(self: GatewayPages, path: str, body: Any) -> Row:
        assert (path, body["to"]) == ("/debug/flip", "decode")
        return {"replica": "prefill-1", "role": role, "num_open": 2}

    def get(self: GatewayPages, path: str) -> Row:
        if (page := left.pop(0) if len(left) > 1 else left[0]) is None:
            raise Unavailable("the gateway is busy")
        prefill, decode = page
        return {"pools": {"prefill": prefill, "decode": decode}}

    monkeypatch.setattr(GatewayPages, "post", post)
    monkeypatch.setattr(GatewayPages, "get", get)
    monkeypatch.setattr(command, "POLL_S", 0.001)
    result = CliRunner().invoke(
        app, ["flip", "prefill", "--to", "decode", "--url", "http://localhost:1", *options]
    )
    return result.exit_code, result.output.splitlines()


def test_it_returns_when_the_replica_takes_requests_in_its_new_role(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    served = {"replica": "prefill-1", "is_ready": True}
    unready = {**served, "is_ready": False}
    pages = [((DRAINS,), ()), None, ((), ()), ((), (unready,)), ((), (served,))]

    status, lines = flip(monkeypatch, "prefill", pages)

    assert status == 0
    assert lines[0] == "prefill-1: 2 requests still to leave"
    assert lines[1].startswith("prefill-1 serves as decode, after ")


def test_a_replica_that_has_the_role_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert flip(monkeypatch, "decode", []) == (0, ["prefill-1 serves as decode"])


def test_one_that_stays_what_it_is_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    stays = {**DRAINS, "is_ready": True, "flip": {"to": "decode", "failure": "it was undrained"}}

    status, lines = flip(monkeypatch, "prefill", [((stays,), ())])

    assert status == 1
    assert lines[-1] == "baton flip: prefill-1 does not serve as decode: it was undrained"


def test_one_that_is_gone_in_the_middle_is_not_waited_for_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    status, lines = flip(monkeypatch, "prefill", [((), ())], "--wait", "0.01")

    assert status == 1
    assert "Serve has replaced it with a replica in the role of its pool" in lines[-1]
