"""What `baton top` shows of an application."""

from __future__ import annotations

import io
from typing import Any

from rich.console import Console

from baton.platform.cli.terminal.application_table import application_table


def row(**says: Any) -> dict[str, Any]:
    return {
        "replica": "prefill-b6x7lxkx",
        "deployment": "Prefill",
        "state": "RUNNING",
        "node": "192.168.100.100",
        "pid": 4194304,
        "says": says,
    }


BUSY = {
    "is_reachable": True,
    "is_ready": False,
    "num_running": 1024,
    "num_waiting": 10240,
    "num_queued_tokens": 327680,
    "num_blocks": 13107,
    "num_free_blocks": 0,
}


def drawn(*rows: dict[str, Any]) -> str:
    out = io.StringIO()
    application = {
        "application": "baton",
        "status": "RUNNING",
        "message": "",
        "trouble": [],
        "replicas": rows,
    }
    Console(file=out, width=80).print(application_table(application))
    return out.getvalue()


def test_the_widest_replica_fits_a_terminal_of_80_columns() -> None:
    shown = drawn(row(**BUSY))

    for cell in ("prefill-b6x7lxkx", "192.168.100.100", "4194304", "draining", "10240", "100%"):
        assert cell in shown
    assert "…" not in shown


def test_why_a_replica_cannot_be_asked_is_told_below_the_table() -> None:
    shown = drawn(row(is_reachable=False, trouble="the peer hung up"))

    assert "unreachable" in shown
    assert "prefill-b6x7lxkx: the peer hung up" in shown


def test_a_registry_that_the_gateway_does_not_hear_is_told_from_one_that_it_hears() -> None:
    said = [{"is_heard": True, "trouble": ""}, {"is_heard": False, "trouble": "TimeoutError: "}]
    names = ("registry-b6x7lxkx", "registry-1-b6x7lxkx")
    rows = [
        {**row(**says), "replica": name, "deployment": "Registry-1"}
        for name, says in zip(names, said, strict=True)
    ]

    shown = drawn(*rows, row(**BUSY))

    assert "no answer" in shown and "running" in shown and "…" not in shown
    assert "registry-1-b6x7lxkx: TimeoutError" in shown
