"""`baton serve`: checks what can be checked at once, then runs the deployment."""

from __future__ import annotations

import errno
import socket
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console

from baton.core.errors import BatonError, InvalidConfig
from baton.platform.cli.process_session import run_in_session
from baton.platform.config import DeploymentConfig, override, read_config
from baton.platform.gateway.text.model_files import ModelFiles
from baton.platform.model_folder import find_model

errors = Console(stderr=True)


def serve(  # noqa: PLR0913 - one parameter an option
    model: Annotated[
        str | None, typer.Argument(help="Model folder or Hugging Face id.  [default: demo]")
    ] = None,
    config_file: Annotated[
        Path | None, typer.Option("-f", "--config", help="The deployment as a YAML file.")
    ] = None,
    prefill: Annotated[
        int | None, typer.Option(help="Prefill replicas; 0 computes prompts where they decode.")
    ] = None,
    decode: Annotated[int | None, typer.Option(help="Decode replicas.")] = None,
    host: Annotated[str | None, typer.Option(help="Address to listen on.")] = None,
    port: Annotated[int | None, typer.Option(help="HTTP port (OpenAI API).")] = None,
    grpc_port: Annotated[int | None, typer.Option(help="gRPC port (baton.v1).")] = None,
    dtype: Annotated[str | None, typer.Option(help="auto, float32, bfloat16 or float16.")] = None,
    served_model_name: Annotated[
        str | None, typer.Option(help="What clients call the model.")
    ] = None,
    verbose: Annotated[bool, typer.Option("--verbose", "-v", help="Show replicas' logs.")] = False,
) -> None:
    """Serve a model: OpenAI-compatible HTTP and gRPC, prefill and decode in separate processes."""
    changes = {
        "model": model,
        "prefill.replicas": prefill,
        "decode.replicas": decode,
        "gateway.host": host,
        "gateway.port": port,
        "gateway.grpc_port": grpc_port,
        "dtype": dtype,
        "served_model_name": served_model_name,
    }
    try:
        config = _configure(config_file, changes)
        folder = find_model(config.model)
        ModelFiles.read(folder)
        _check_ports(config)
    except BatonError as error:
        errors.print(f"[red]baton serve:[/red] {error}", highlight=False)
        raise typer.Exit(2) from None
    arguments = [
        "-m",
        "baton.platform.cli.serving",
        str(folder),
        *(["--verbose"] if verbose else []),
    ]
    grace_s = 2 * config.health.drain_s + 30.0
    stdin = msgspec.json.encode(config)
    raise typer.Exit(run_in_session(arguments, stop_grace_s=grace_s, stdin=stdin))


def _configure(config_file: Path | None, changes: dict[str, Any]) -> DeploymentConfig:
    config = read_config(config_file) if config_file is not None else DeploymentConfig()
    return override(config, {path: value for path, value in changes.items() if value is not None})


def _check_ports(config: DeploymentConfig) -> None:
    """Gateways share their port with successors (SO_REUSEPORT); strangers must not, unnoticed."""
    for option, port in (
        ("--port", config.gateway.port),
        ("--grpc-port", config.gateway.grpc_port),
    ):
        try:
            _probe(config.gateway.host, port)
        except OSError as error:
            remedy = option if error.errno in (errno.EADDRINUSE, errno.EACCES) else "--host"
            raise InvalidConfig(
                f"cannot listen on {config.gateway.host}:{port} ({error.strerror}); "
                f"choose another with {remedy}"
            ) from None


def _probe(host: str, port: int) -> None:
    """Raises OSError if the port cannot be bound, or is somebody else's."""
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
