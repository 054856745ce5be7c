"""`baton logs`: what the replicas of an application have logged, on whatever node they are."""

from __future__ import annotations

import time
from typing import Annotated

import typer

from baton.core.errors import InvalidRequest
from baton.platform.cli.options.cluster_options import APP_NAME, AppName, RayAddress
from baton.platform.cli.runs.cluster_session import connected
from baton.platform.cli.terminal.errors import errors_in_one_line

FOLLOW_S = 1.0


def logs(
    of: Annotated[
        str, typer.Argument(help="A replica's id, or prefill, decode, gateway. Empty: all.")
    ] = "",
    app_name: AppName = APP_NAME,
    address: RayAddress = "",
    lines: Annotated[int, typer.Option("-n", "--lines", min=1, help="The last so many.")] = 100,
    follow: Annotated[bool, typer.Option("--follow", help="Go on with what comes.")] = False,
) -> None:
    """Print the logs that Ray Serve keeps of replicas that are there."""
    with errors_in_one_line("baton logs"), connected(address):
        ends: dict[str, int] = {}
        while True:
            _print_new(app_name, of.lower(), lines, ends)
            if not follow:
                break
            time.sleep(FOLLOW_S)
        if not ends:
            raise InvalidRequest(
                f"{app_name} has no replica {of}; `baton top` lists them", field="replica"
            )


def _print_new(app_name: str, of: str, num_lines: int, ends: dict[str, int]) -> None:
    """What has come since it was looked at last, replica by replica."""
    from ray.exceptions import RayError

    from baton.platform.cluster.applications.applications import read_log, replicas

    for replica in replicas(app_name):
        name = f"{replica.deployment.lower()}-{replica.unique_id}"
        if of not in ("", name, replica.unique_id, replica.deployment.lower()):
            continue
        try:
            text, end = read_log(replica, ends.get(name, -1), num_lines)
        except RayError:  # it left meanwhile, or its node did
            continue
        ends[name] = end
        for line in text.splitlines():
            typer.echo(f"{name}: {line}")
