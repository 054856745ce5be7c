"""`baton deploy`: a deployment on a Ray cluster, which outlives this command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from baton.engine.checkpoint.files.weight_files import check_folder
from baton.gateway.text.model_files import ModelFiles
from baton.platform.cli.options.cluster_options import RayAddress
from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import DEPLOY_OPTIONS, with_config_options
from baton.platform.cli.runs.application import deploy_document, told_before
from baton.platform.cli.runs.cluster_session import connected
from baton.platform.cli.runs.start_check import StartCheck
from baton.platform.cli.terminal.errors import errors_in_one_line
from baton.platform.cluster.applications.serve_document import application
from baton.platform.config.deployment import DeploymentConfig, configure, override
from baton.platform.machine.memory import read_memory
from baton.platform.models.listing import weights_of
from baton.platform.models.model_folder import local_folder


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
    """Deploy to a Ray cluster, or change the configuration of a running deployment: in place,
    unless a setting needs a restart."""
    with errors_in_one_line("baton deploy"), StartCheck() as check:
        config = configure(config_file, changes if model is None else {**changes, "model": model})
        wanted = application(config)
        _judge(config, check)
        with connected(address or config.ray.address):
            if dry_run:
                typer.echo("\n".join(told_before(wanted, config.ray.app_name)))
            else:
                deploy_document(wanted, config, waits=wait)


def _judge(config: DeploymentConfig, check: StartCheck) -> None:
    """Check the start as `baton serve` does, so that nothing is sent that no node could serve;
    memory and devices, and a model that is not here, are left to the nodes. Raises CheckpointError
    or InvalidConfig.
    """
    folder = local_folder(config.model)
    if folder is None:
        return
    has_some = any(weights_of([path.name for path in folder.iterdir()]))
    check_folder(folder, wants_weights=config.wants_weights and has_some)
    files = ModelFiles.read(folder, needs_tokenizer=config.wants_weights)
    files.pooling.judging_as(config.gateway.reranker)
    on_nodes = override(config, {"ray.address": config.ray.address or "auto"})
    check.ask(on_nodes, folder, read_memory())
    if warning := check.warning():
        typer.echo(warning, err=True)
