"""`baton drain`: empties a replica, so that it can be removed without failed requests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Annotated

import typer

from baton.core.errors import DeadlineExceeded
from baton.core.wording import count_of
from baton.platform.cli.options.gateway_options import AdminUrl, ApiKey, CaFile, admin_pages
from baton.platform.cli.terminal.asking_again import AskingAgain
from baton.platform.cli.terminal.errors import errors_in_one_line

POLL_S = 0.5


def drain(
    replica: Annotated[str, typer.Argument(help="Its id, as `baton status` shows it.")],
    url: AdminUrl = None,
    api_key: ApiKey = None,
    ca_file: CaFile = None,
    force: Annotated[
        bool, typer.Option("--force", help="Also if no other decode replica takes requests.")
    ] = False,
    wait: Annotated[
        float,
        typer.Option(min=0, help="Seconds to wait until nothing is left there; 0 returns at once."),
    ] = 300.0,
) -> None:
    """Move all requests of a replica elsewhere, with their KV, and place nothing more there."""
    with errors_in_one_line("baton drain"):
        pages = admin_pages(url, api_key, ca_file)

        def ask() -> int:
            answer = pages.post("/debug/drain", {"replica": replica, "force": force})
            return int(answer["num_open"])

        num_open = ask()
        if wait and num_open:
            _wait_until_empty(ask, replica, num_open, wait)
            num_open = 0
    text = (
        f"{count_of(num_open, 'request')} still to leave" if num_open else "nothing is left there"
    )
    typer.echo(f"{replica} is draining: {text}")


def _wait_until_empty(ask: Callable[[], int], replica: str, num_open: int, limit_s: float) -> None:
    """Raises DeadlineExceeded; the replica continues to drain. Raises Unavailable if the gateway
    answers no more."""
    ask_again = AskingAgain(ask)
    deadline = time.monotonic() + limit_s
    num_told = -1
    while num_open:
        if num_open != num_told:
            typer.echo(f"{replica}: {count_of(num_open, 'request')} still to leave")
            num_told = num_open
        if time.monotonic() >= deadline:
            raise DeadlineExceeded(
                f"{replica} still has {count_of(num_open, 'request')} after {limit_s:g} s; it "
                "continues to drain: run the command again to follow it"
            )
        time.sleep(POLL_S)
        answer = ask_again()
        num_open = num_open if answer is None else answer
