"""`baton deploy`: a deployment on a Ray cluster that stays when this command ends."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from baton.platform.cli.options.cluster_options import RayAddress
from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import DEPLOY_OPTIONS, with_config_options
from baton.platform.cli.runs.application import deploy_document, told_before
from baton.platform.cli.runs.cluster_session import connected
from baton.platform.cli.terminal.errors import told_in_one_line
from baton.platform.cluster.applications.serve_document import application
from baton.platform.config.deployment import configure


@with_config_options(DEPLOY_OPTIONS)
def deploy(
    changes: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model folder on every node, Hugging Face id, or `demo`.",
            autocompletion=complete_model,
        ),
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("-f", "--config", help="The deployment as a YAML file.")
    ] = None,
    address: RayAddress = "",
    dry_run: Annotated[
        bool,
        typer.Option("--dry-run", help="Say what would change in place, and what would restart."),
    ] = False,
    wait: Annotated[
        bool, typer.Option("--wait/--no-wait", help="Return when all of it serves.")
    ] = True,
) -> None:
    """Deploy to a Ray cluster, or bring what runs there to another configuration, in place if
    nothing of it needs a restart."""
    with told_in_one_line("baton deploy"):
        config = configure(config_file, changes if model is None else {**changes, "model": model})
        wanted = application(config)
        with connected(address or config.ray.address):
            if dry_run:
                typer.echo("\n".join(told_before(wanted, config.ray.app_name)))
            else:
                deploy_document(wanted, config, waits=wait)
