"""`baton flip`: a replica changes its role, and keeps its weights and cached KV."""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any

import typer

from baton.core.errors import DeadlineExceeded, Unavailable
from baton.core.replicas import Role
from baton.core.wording import count_of
from baton.platform.cli.options.gateway_options import AdminUrl, ApiKey, CaFile, admin_pages
from baton.platform.cli.terminal.asking_again import AskingAgain
from baton.platform.cli.terminal.errors import errors_in_one_line
from baton.platform.observe.gateway_pages import GatewayPages

POLL_S = 0.25


def flip(
    replica: Annotated[
        str,
        typer.Argument(
            help="Its id, as `baton status` shows it; or `prefill` or `decode`, for whichever of "
            "them has least to do."
        ),
    ],
    to: Annotated[Role, typer.Option("--to", help="The role to take.")],
    url: AdminUrl = None,
    api_key: ApiKey = None,
    ca_file: CaFile = None,
    wait: Annotated[
        float, typer.Option(min=0, help="Seconds to wait until it is done; 0 returns at once.")
    ] = 120.0,
) -> None:
    """Drain a replica, then let it serve in the other role, without reloading."""
    began_s = time.monotonic()
    with errors_in_one_line("baton flip"):
        pages = admin_pages(url, api_key, ca_file)
        told = pages.post("/debug/flip", {"replica": replica, "to": to.value})
        replica_id, num_open = str(told["replica"]), int(told["num_open"])
        if told["role"] == to:
            typer.echo(f"{replica_id} serves as {to}")
            return
        typer.echo(f"{replica_id}: {count_of(num_open, 'request')} still to leave")
        if not wait:
            return
        _wait_until_done(pages, replica_id, to, began_s + wait)
    typer.echo(f"{replica_id} serves as {to}, after {time.monotonic() - began_s:.1f} s")


def _wait_until_done(pages: GatewayPages, replica_id: str, to: Role, deadline: float) -> None:
    """Raises Unavailable if it keeps its role, or the gateway answers no more; DeadlineExceeded if
    that is not known yet."""
    look = AskingAgain(partial(_row, pages, replica_id, to))
    while True:
        row = look() or {}
        if row.get("is_ready"):
            return
        failure = row.get("flip", {}).get("failure")
        if failure:
            raise Unavailable(f"{replica_id} does not serve as {to}: {failure}")
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(
                f"{replica_id} does not serve as {to} yet; see `baton status`. If it is not "
                "listed there, Serve has replaced it with a replica in the role of its pool"
            )
        time.sleep(POLL_S)


def _row(pages: GatewayPages, replica_id: str, to: Role) -> dict[str, Any]:
    """Its status row in the role `to`, or in the other role while it drains; None while it
    changes."""
    for role, rows in pages.get("/debug/status")["pools"].items():
        for row in rows:
            if row["replica"] == replica_id:
                return row if role == to else {"flip": row.get("flip", {})}
    return {}
