"""Options that commands which ask a running deployment have in common."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

LOCAL_GATEWAY = "http://localhost:8000"

GatewayUrl = Annotated[str, typer.Option("--url", help="The gateway's HTTP address.")]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="BATON_API_KEY", help="If the gateway asks for one."),
]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca-file", help="PEM certificates to trust, instead of the system's."),
]
