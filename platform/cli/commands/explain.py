"""`baton explain`: explains a request's placement, or the planner's decisions."""

from __future__ import annotations

import json
from typing import Annotated, Any
from urllib.parse import quote

import typer

from baton.platform.cli.options.gateway_options import AdminUrl, ApiKey, CaFile, admin_pages
from baton.platform.cli.terminal.errors import errors_in_one_line

PLANNER = "planner"


def explain(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="ID|planner",
            help="A request's x-request-id, or the id of its answer; `planner`: numbers of "
            "replicas.",
        ),
    ],
    url: AdminUrl = None,
    api_key: ApiKey = None,
    ca_file: CaFile = None,
    is_json: Annotated[
        bool, typer.Option("--json", help="For programs: times in seconds.")
    ] = False,
) -> None:
    """Show each replica that was considered for a request, with predictions and outcome; or the
    planner's recent decisions and their reasons."""
    is_planner = subject == PLANNER
    path = "/debug/planner" if is_planner else f"/v1/requests/{quote(subject, safe='')}"
    with errors_in_one_line("baton explain"):
        found: dict[str, Any] = admin_pages(url, api_key, ca_file).get(path)
    if is_json:
        typer.echo(json.dumps(found, indent=2))
        return
    from rich.console import Console

    from baton.platform.cli.terminal.explained import show
    from baton.platform.cli.terminal.planner_view import show_planner

    (show_planner if is_planner else show)(Console(highlight=False), found)
