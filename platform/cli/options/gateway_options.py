"""Options of commands that query a running deployment."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from baton.core.errors import Unavailable
from baton.gateway.access.config import GatewayConfig
from baton.platform.observe.gateway_pages import GatewayPages, gateway_url, reachable
from baton.platform.observe.listeners import first_listening, foreign_listeners

AdminUrl = Annotated[
    str | None,
    typer.Option(
        "--url",
        help="A gateway's address for operators (gateway.admin_port).",
        show_default="the first on this machine",
    ),
]
ApiKey = Annotated[
    str | None,
    typer.Option("--api-key", envvar="BATON_API_KEY", help="If the gateway asks for one."),
]
CaFile = Annotated[
    Path | None,
    typer.Option("--ca-file", help="PEM certificates to trust, instead of the system's."),
]


def admin_pages(
    url: str | None,
    api_key: str | None,
    ca_file: Path | None,
    config: GatewayConfig | None = None,
) -> GatewayPages:
    """Operator pages of the gateway at `url`, or of the first on this machine that `config` names.

    Raises Unavailable rather than give a key to another user of the machine, unless `url` says so.
    """
    return GatewayPages(url or _here(config or GatewayConfig(), api_key), api_key, ca_file)


def _here(config: GatewayConfig, api_key: str | None) -> str:
    host, port = config.admin_host, config.admin_port
    found = first_listening(reachable(host), port) if port else 0
    url = gateway_url(config, host, found)
    is_proven = bool(config.tls_cert_file)
    if api_key and not is_proven and (strangers := foreign_listeners(found)):
        raise Unavailable(
            f"the process at {url} belongs to another user (uid {min(strangers)}) and would "
            f"receive the API key; if it is the gateway, give --url {url}"
        )
    return url
