"""`baton undeploy`: ends one application of a Ray cluster, and no other."""

from __future__ import annotations

from typing import Annotated

import typer

from baton.platform.cli.options.cluster_options import APP_NAME, AppName, RayAddress
from baton.platform.cli.runs.application import undeploy as end_application
from baton.platform.cli.runs.cluster_session import connected
from baton.platform.cli.terminal.errors import errors_in_one_line


def undeploy(
    app_name: AppName = APP_NAME,
    address: RayAddress = "",
    wait: Annotated[float, typer.Option(min=0, help="Seconds to wait until it has ended.")] = 180.0,
) -> None:
    """Finish the requests of an application, and end it."""
    with errors_in_one_line("baton undeploy"), connected(address):
        end_application(app_name, wait)
    typer.echo(f"{app_name} has ended")
