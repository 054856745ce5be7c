"""The `baton` command."""

from __future__ import annotations

import typer

from baton.platform.cli.chat import chat
from baton.platform.cli.serve import serve
from baton.platform.cli.status import status

app = typer.Typer(
    help="Serve large language models with prefill and decode on separate replica pools.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
)
app.command()(serve)
app.command()(chat)
app.command()(status)

if __name__ == "__main__":
    app()
