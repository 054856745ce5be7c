"""Options of commands that use a Ray cluster."""

from __future__ import annotations

from typing import Annotated

import typer

APP_NAME = "baton"

RayAddress = Annotated[
    str,
    typer.Option(
        "--address",
        help="The Ray cluster: host:port of its head, or ray://... of its client server. Empty: "
        "RAY_ADDRESS, or the one that runs here.",
    ),
]
AppName = Annotated[str, typer.Option("--app-name", help="The application, as `baton top` has it.")]
