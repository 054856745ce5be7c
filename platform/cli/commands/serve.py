"""`baton serve`: checks the configuration, then runs the deployment."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from baton.core.errors import InvalidConfig
from baton.engine.checkpoint.files.weight_files import check_folder
from baton.gateway.access.tls import tls_identity
from baton.gateway.text.model_files import ModelFiles, is_inline
from baton.platform.cli.options.completion import complete_model
from baton.platform.cli.options.config_options import SERVE_OPTIONS, with_config_options
from baton.platform.cli.runs.process_session import run_in_session
from baton.platform.cli.runs.serve import run
from baton.platform.cli.runs.start_check import StartCheck
from baton.platform.cli.terminal.errors import errors_in_one_line
from baton.platform.cli.terminal.progress import download_bars
from baton.platform.cluster.head_address import check_head
from baton.platform.cluster.local_cluster import check_ray_folder
from baton.platform.config.deployment import DeploymentConfig, configure, override
from baton.platform.doctor.process_room import check_process_room
from baton.platform.machine.memory import read_memory
from baton.platform.machine.ports import check_bindable
from baton.platform.models.adapter_folders import with_adapters
from baton.platform.models.draft_folder import with_draft
from baton.platform.models.model_folder import find_model, whole_name
from baton.platform.security.connections import load_security


@with_config_options(SERVE_OPTIONS)
def serve(
    changes: dict[str, Any],
    model: Annotated[
        str | None,
        typer.Argument(
            help="Model folder, Hugging Face id, or `demo`, the default.",
            autocompletion=complete_model,
        ),
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("-f", "--config", help="The deployment as a YAML file.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show replicas' logs.")] = False,
    only_check: Annotated[
        bool, typer.Option("--check", help="Say whether it would start, and start nothing.")
    ] = False,
) -> None:
    """Serve a model: OpenAI-compatible HTTP and gRPC, prefill and decode in separate processes."""
    with StartCheck() as check:
        with errors_in_one_line("baton serve"):
            config = configure(
                config_file, changes if model is None else {**changes, "model": model}
            )
            _check_transport(config)
            is_alone = not config.ray.address
            wants_weights = config.wants_weights and is_alone  # else where replicas are placed
            with download_bars() as bars:
                folder = find_model(config.model, wants_weights=wants_weights, report=bars)
                found = with_draft(config, folder, wants_weights=wants_weights, report=bars)
                if is_alone:  # otherwise fetched where replicas are placed
                    found = with_adapters(found, bars)
            config = _with_whole_path(found) if is_alone else _for_all_nodes(config)
            check_folder(folder, wants_weights=wants_weights)
            files = ModelFiles.read(folder, needs_tokenizer=config.wants_weights)
            files.pooling.judging_as(config.gateway.reranker)
            if is_alone:  # otherwise needed only where the gateway is placed
                _check_chat_templates(files, config.gateway.chat_template)
                tls_identity(config.gateway)
                known = msgspec.structs.replace(config.security, default_token="none")
                load_security(known)  # Ray's own token may be drawn later
                check_ray_folder()
            else:
                check_head(config.ray.address)
            _check_ports(config)
            memory = read_memory()
            check_process_room(config, memory)
        check.ask(config, folder, memory)
        if only_check:
            with errors_in_one_line("baton serve"):
                typer.echo(check.warning() or f"{config.model_name} would start")
            return
        grace_s = 2 * config.health.drain_s + 30.0
        status = run_in_session(
            lambda: run(config, folder, check, is_verbose=verbose), stop_grace_s=grace_s
        )
    raise typer.Exit(status)


def _for_all_nodes(config: DeploymentConfig) -> DeploymentConfig:
    """`config` for other nodes, with absolute paths of model folders."""
    draft = config.decode.speculation.model
    changes = {
        "model": whole_name(config.model),
        "served_model_name": config.model_name,
        "adapters": {name: whole_name(where) for name, where in config.adapters.items()},
        "decode.speculation.model": whole_name(draft) if draft else "",
    }
    return override(config, changes)


def _with_whole_path(config: DeploymentConfig) -> DeploymentConfig:
    """`config` with an absolute chat template path, since the gateway runs in another folder."""
    setting = config.gateway.chat_template
    if not setting or is_inline(setting):
        return config
    return override(config, {"gateway.chat_template": str(Path(setting).expanduser().absolute())})


def _check_chat_templates(files: ModelFiles, setting: str) -> None:
    """Raises CheckpointError and InvalidConfig."""
    from baton.gateway.text.chat_templates import ChatTemplates  # Jinja is slow to import

    ChatTemplates.compile(files.chat_templates, files.special_tokens, instead=setting)


def _check_transport(config: DeploymentConfig) -> None:
    if config.transfer.transport == "memory" and config.prefill.replicas:
        raise InvalidConfig(
            "transfer.transport: `memory` works within one process only, and each replica is a "
            "process; choose another with --transport, or serve without prefill replicas "
            "(--prefill 0)"
        )


def _check_ports(config: DeploymentConfig) -> None:
    """Raises InvalidConfig if a port is taken: SO_REUSEPORT, for gateways' successors, would hide
    that."""
    for option, port in (
        ("--port", config.gateway.port),
        ("--grpc-port", config.gateway.grpc_port),
    ):
        try:
            check_bindable(config.gateway.host, port)
        except OSError as error:
            remedy = option if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
            raise InvalidConfig(
                f"cannot listen on {config.gateway.host}:{port} ({error.strerror}); "
                f"choose another with {remedy}"
            ) from None
