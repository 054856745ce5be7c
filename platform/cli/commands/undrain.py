"""`baton undrain`: takes a drained replica back into service."""

from __future__ import annotations

from typing import Annotated

import typer

from baton.platform.cli.options.gateway_options import AdminUrl, ApiKey, CaFile, admin_pages
from baton.platform.cli.terminal.errors import errors_in_one_line


def undrain(
    replica: Annotated[str, typer.Argument(help="Its id, as `baton status` shows it.")],
    url: AdminUrl = None,
    api_key: ApiKey = None,
    ca_file: CaFile = None,
) -> None:
    """Let a drained replica take requests again, with the weights and the KV that it has."""
    with errors_in_one_line("baton undrain"):
        admin_pages(url, api_key, ca_file).post("/debug/undrain", {"replica": replica})
    typer.echo(f"{replica} takes requests again")
