"""`baton explain`: why a request ran where it ran, and whether that was right."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from baton.platform.cli.options.gateway_options import AdminUrl, ApiKey, CaFile, admin_pages
from baton.platform.cli.terminal.errors import told_in_one_line


def explain(
    request_id: Annotated[
        str, typer.Argument(metavar="ID", help="Its x-request-id, or the id of its answer.")
    ],
    url: AdminUrl = None,
    api_key: ApiKey = None,
    ca_file: CaFile = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="For programs: times in seconds.")
    ] = False,
) -> None:
    """Show each replica that was considered for a request, what was predicted, and what came."""
    with told_in_one_line("baton explain"):
        pages = admin_pages(url, api_key, ca_file)
        found: dict[str, Any] = pages.get(f"/v1/requests/{quote(request_id, safe='')}")
    if is_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console

    from baton.platform.cli.terminal.explained import show

    show(Console(highlight=False), found)
