"""The `baton` command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import Annotated, Any

import typer

from baton.core.home import set_home
from baton.platform.cli.terminal.errors import OneLineErrors

COMMANDS = (
    "serve", "deploy", "scale", "undeploy", "top", "logs", "generate", "chat", "status", "explain",
    "drain", "undrain", "flip", "models", "fetch", "plan", "simulate",
    "replay", "trace", "verify", "profile", "certs", "keys", "doctor", "config", "chaos", "k8s",
    "bench",
)  # fmt: skip
"""Commands in the order in which help lists them: modules of `baton.platform.cli.commands`, each
with a function of its name, or with an `app` of several commands."""


class _Commands(Mapping[str, Any]):
    """The commands by name. Each is imported only when used."""

    def __getitem__(self, name: str) -> Any:
        if name not in COMMANDS:
            raise KeyError(name)
        return _command(name)

    def __iter__(self) -> Iterator[str]:
        return iter(COMMANDS)

    def __len__(self) -> int:
        return len(COMMANDS)


@cache
def _command(name: str) -> Any:
    module = import_module(f"baton.platform.cli.commands.{name}")
    if hasattr(module, "app"):
        command: Any = typer.main.get_group(module.app)
    else:
        alone = typer.Typer(
            add_completion=False, pretty_exceptions_enable=False, rich_markup_mode="rich"
        )
        alone.command(name)(getattr(module, name))
        command = typer.main.get_command(alone)
    command.name = name
    _flow(command)
    return command


def _flow(command: Any) -> None:
    """Let help break its lines where the terminal ends, not where the code's lines end."""
    paragraphs = (command.help or "").split("\n\n")
    command.help = "\n\n".join(
        paragraph if "\n " in paragraph else paragraph.replace("\n", " ")
        for paragraph in paragraphs
    )
    for inner in getattr(command, "commands", {}).values():
        _flow(inner)


class LazyCommands(OneLineErrors):
    def __init__(self, **attributes: Any) -> None:
        super().__init__(**{**attributes, "commands": _Commands()})

    def list_commands(self, ctx: Any) -> list[str]:
        return list(COMMANDS)


app = typer.Typer(
    cls=LazyCommands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(*, is_asked: bool) -> None:
    if is_asked:
        from importlib.metadata import (
            version,  # slow: reads all installed packages
        )

        typer.echo(f"baton {version('baton-llm')}")
        raise typer.Exit


@app.callback()
def baton(
    is_asked: Annotated[
        bool,
        typer.Option(
            "--version", help="Show the version and exit.", is_eager=True, callback=_show_version
        ),
    ] = False,
) -> None:
    """Serve large language models with prefill and decode on separate replica pools."""
    set_home()


if __name__ == "__main__":
    app()
