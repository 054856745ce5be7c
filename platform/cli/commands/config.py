"""`baton config`: shows the resulting configuration, or its schema."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from baton.platform.cli.options.config_options import (
    DEPLOY_OPTIONS,
    SERVE_OPTIONS,
    with_config_options,
)
from baton.platform.cli.terminal.errors import errors_in_one_line
from baton.platform.config.deployment import configure
from baton.platform.config.docs import is_secret, json_schema, settings

app = typer.Typer(help="Show the configuration, or what may be in it.", no_args_is_help=True)

MASK = "********"


@app.command()
@with_config_options(SERVE_OPTIONS)
def show(
    changes: dict[str, Any],
    model: Annotated[str | None, typer.Argument(help="As for `baton serve`.")] = None,
    config_file: Annotated[
        Path | None, typer.Option("-f", "--config", help="The deployment as a YAML file.")
    ] = None,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Mark what is as it is by default.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of YAML.")] = False,
) -> None:
    """The configuration that `baton serve` with the same options would run, secrets masked."""
    with errors_in_one_line("baton config show"):
        config = configure(config_file, changes if model is None else {**changes, "model": model})
    shown = _mask(msgspec.to_builtins(config, order="deterministic"), "")
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode(shown)).decode())
        return
    for line in _yaml_lines(shown, "", marks_defaults=defaults):
        typer.echo(line)


@app.command()
@with_config_options(DEPLOY_OPTIONS)
def document(
    changes: dict[str, Any],
    model: Annotated[str | None, typer.Argument(help="As for `baton deploy`.")] = None,
    config_file: Annotated[
        Path | None, typer.Option("-f", "--config", help="The deployment as a YAML file.")
    ] = None,
) -> None:
    """The file for Ray's own `serve deploy`, or a RayService: what `baton deploy` sends."""
    from baton.platform.cluster.applications.serve_document import document as serve_document

    with errors_in_one_line("baton config document"):
        config = configure(config_file, changes if model is None else {**changes, "model": model})
        typer.echo(yaml.safe_dump(serve_document(config), sort_keys=False), nl=False)


@app.command()
def schema() -> None:
    """The JSON schema of the configuration, for editors and the Helm chart."""
    sys.stdout.write(msgspec.json.format(msgspec.json.encode(json_schema())).decode() + "\n")


def _mask(node: dict[str, Any], prefix: str) -> dict[str, Any]:
    return {
        key: (
            _mask(value, f"{prefix}{key}.")
            if isinstance(value, dict)
            else _masked(value)
            if is_secret(f"{prefix}{key}")
            else value
        )
        for key, value in node.items()
    }


def _masked(secret: str | list[str]) -> str | list[str]:
    """Mask a secret, but show if it is not set."""
    return [MASK] * len(secret) if isinstance(secret, list) else MASK * bool(secret)


def _yaml_lines(node: dict[str, Any], prefix: str, *, marks_defaults: bool) -> Iterator[str]:
    indent = "  " * prefix.count(".")
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict) and value:
            yield f"{indent}{_scalar(key)}:"
            yield from _yaml_lines(value, f"{path}.", marks_defaults=marks_defaults)
            continue
        setting = settings().get(path)  # no setting below names that the operator chooses
        is_default = setting is not None and value == msgspec.to_builtins(setting.default)
        mark = "  # default" if marks_defaults and is_default else ""
        yield f"{indent}{key}: {_scalar(value)}{mark}"


def _scalar(value: object) -> str:
    """A leaf on one line, as YAML."""
    text = yaml.safe_dump(value, default_flow_style=True, width=sys.maxsize, allow_unicode=True)
    return text.removesuffix("\n").removesuffix("\n...")
