"""The `baton` command."""

from __future__ import annotations

from importlib.metadata import version
from typing import Annotated

import typer

from baton.platform.cli.commands import bench, chaos, config
from baton.platform.cli.commands.certs import certs
from baton.platform.cli.commands.chat import chat
from baton.platform.cli.commands.doctor import doctor
from baton.platform.cli.commands.drain import drain
from baton.platform.cli.commands.generate import generate
from baton.platform.cli.commands.models import models
from baton.platform.cli.commands.plan import plan
from baton.platform.cli.commands.profile import profile
from baton.platform.cli.commands.serve import serve
from baton.platform.cli.commands.status import status
from baton.platform.cli.commands.trace import trace
from baton.platform.cli.commands.verify import verify
from baton.platform.cli.terminal.errors import OneLineErrors

app = typer.Typer(
    cls=OneLineErrors,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode="rich",
)


def _show_version(*, is_asked: bool) -> None:
    if is_asked:
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


for command in (
    serve, generate, chat, status, drain, models, plan, trace, verify, profile, certs, doctor,
):  # fmt: skip
    app.command()(command)
app.add_typer(config.app, name="config")
app.add_typer(chaos.app, name="chaos")
app.add_typer(bench.app, name="bench")

if __name__ == "__main__":
    app()
