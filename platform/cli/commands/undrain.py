"""`baton undrain`: takes a drained replica back into service."""

from __future__ import annotations

from typing import Annotated

import typer

from baton.platform.cli.options.gateway_options import LOCAL_GATEWAY, ApiKey, CaFile, GatewayUrl
from baton.platform.cli.terminal.errors import told_in_one_line
from baton.platform.observe.gateway_pages import GatewayPages


def undrain(
    replica: Annotated[str, typer.Argument(help="Its id, as `baton status` shows it.")],
    url: GatewayUrl = LOCAL_GATEWAY,
    api_key: ApiKey = None,
    ca_file: CaFile = None,
) -> None:
    """Let a drained replica take requests again, with the weights and the KV that it has."""
    with told_in_one_line("baton undrain"):
        GatewayPages(url, api_key, ca_file).post("/debug/undrain", {"replica": replica})
    typer.echo(f"{replica} takes requests again")
