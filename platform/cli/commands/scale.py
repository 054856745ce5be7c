"""`baton scale`: sets numbers of replicas."""

from __future__ import annotations

from typing import Annotated

import typer

from baton.core.errors import InvalidConfig
from baton.platform.cli.options.cluster_options import APP_NAME, AppName, RayAddress
from baton.platform.cli.runs.application import scale as scale_application
from baton.platform.cli.runs.cluster_session import connected
from baton.platform.cli.terminal.errors import errors_in_one_line


def scale(
    counts: Annotated[
        list[str],
        typer.Argument(metavar="POOL=N...", help="prefill, decode or gateway, and how many."),
    ],
    app_name: AppName = APP_NAME,
    address: RayAddress = "",
    hold: Annotated[
        float | None,
        typer.Option(
            help="Seconds for which a planner leaves them so; planner.hold_s, if nothing is said.",
            min=0.0,
        ),
    ] = None,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when all of them serve.")
    ] = True,
) -> None:
    """Set the numbers of replicas of pools. Removed replicas are drained: no request is lost."""
    with errors_in_one_line("baton scale"):
        wanted = dict(map(_count, counts))
        with connected(address):
            scale_application(app_name, wanted, hold_s=hold, waits=wait)


def _count(text: str) -> tuple[str, int]:
    pool, _, number = text.partition("=")
    if not number.isdecimal():
        raise InvalidConfig(f"{text!r}: give pools and numbers, such as `prefill=2 decode=3`")
    return pool, int(number)
