"""`baton status`: what the gateway knows of the pools, as a table."""

from __future__ import annotations

from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import URLError
from urllib.request import urlopen

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

TIMEOUT_S = 5.0


def status(
    url: Annotated[str, typer.Option(help="The gateway's HTTP address.")] = "http://localhost:8000",
    as_json: Annotated[bool, typer.Option("--json", help="Print what the gateway says.")] = False,
) -> None:
    """Show pools, replicas, load and KV use."""
    try:
        with urlopen(f"{url}/debug/status", timeout=TIMEOUT_S) as response:
            body = response.read()
        report = msgspec.json.decode(body, type=dict[str, Any])
    except (URLError, OSError, ValueError, HTTPException, msgspec.DecodeError) as error:
        is_foreign = isinstance(error, HTTPException)
        reason = "it does not speak HTTP" if is_foreign else getattr(error, "reason", error)
        Console(stderr=True).print(f"[red]baton status:[/red] no gateway at {url}: {reason}")
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(body.decode())
        return
    Console().print(_table(report))


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
