"""`baton status`: what the gateway knows of the pools, as a table."""

from __future__ import annotations

import ssl
from http import HTTPStatus
from http.client import HTTPException
from pathlib import Path
from typing import Annotated, Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.platform.cli.errors import complain

TIMEOUT_S = 5.0


def status(
    url: Annotated[str, typer.Option(help="The gateway's HTTP address.")] = "http://localhost:8000",
    api_key: Annotated[
        str | None, typer.Option(envvar="BATON_API_KEY", help="If the gateway asks for one.")
    ] = None,
    ca_file: Annotated[
        Path | None, typer.Option(help="PEM certificates to trust, instead of the system's.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the gateway says.")] = False,
) -> None:
    """Show pools, replicas, load and KV use."""
    try:
        body = _fetch(url, api_key, ca_file)
        report = msgspec.json.decode(body, type=dict[str, Any])
    except (OSError, ValueError, HTTPException) as error:  # URLError, DecodeError are such
        complain("baton status", _reason(url, error))
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(body.decode())
        return
    Console().print(_table(report))


def _fetch(url: str, api_key: str | None, ca_file: Path | None) -> bytes:
    headers = {"authorization": f"Bearer {api_key}"} if api_key else {}
    request = Request(f"{url.rstrip('/')}/debug/status", headers=headers)
    context = ssl.create_default_context(cafile=ca_file) if url.startswith("https:") else None
    with urlopen(request, timeout=TIMEOUT_S, context=context) as response:
        body: bytes = response.read()
    return body


def _reason(url: str, error: Exception) -> str:
    if isinstance(error, HTTPError) and error.code == HTTPStatus.UNAUTHORIZED:
        return f"the gateway at {url} wants an API key; give it with --api-key or BATON_API_KEY"
    is_foreign = isinstance(error, HTTPException)
    reason = "it does not speak HTTP" if is_foreign else getattr(error, "reason", error)
    return f"no gateway at {url}: {reason}; give its address with --url"


def _table(report: dict[str, Any]) -> Table:
    table = Table(
        title=f"{report['num_waiting']} requests wait for a replica", box=SIMPLE, pad_edge=False
    )
    table.add_column("replica", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in ("running", "waiting", "queued\ntokens", "KV blocks\nused", "sampled"):
        table.add_column(name, justify="right", no_wrap=True)
    for replicas in report["pools"].values():
        for replica in replicas:
            table.add_row(replica["replica"], *_cells(replica))
    return table


def _cells(replica: dict[str, Any]) -> list[str]:
    if not replica["is_reachable"]:
        return ["[red]unreachable[/red]", *["-"] * 5]
    num_blocks = replica["num_blocks"]
    num_used = num_blocks - replica["num_free_blocks"]
    return [
        "[green]ready[/green]" if replica["is_ready"] else "[yellow]draining[/yellow]",
        str(replica["num_running"]),
        str(replica["num_waiting"]),
        str(replica["num_queued_tokens"]),
        f"{num_used} of {num_blocks}",
        f"{replica['metrics'].get('tokens_sampled_total', 0):.0f}",
    ]
