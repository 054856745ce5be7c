"""`baton status`: the pools and replicas as the gateway knows them."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.core.errors import Unavailable
from baton.core.wording import count_of
from baton.platform.cli.options.gateway_options import AdminUrl, ApiKey, CaFile, admin_pages
from baton.platform.cli.terminal.errors import complain


def status(
    url: AdminUrl = None,
    api_key: ApiKey = None,
    ca_file: CaFile = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what the gateway says.")] = False,
) -> None:
    """Show pools, replicas, load and KV use."""
    try:
        report = admin_pages(url, api_key, ca_file).get("/debug/status")
    except Unavailable as error:
        complain("baton status", str(error))
        raise typer.Exit(1) from None
    if as_json:
        typer.echo(msgspec.json.encode(report).decode())
        return
    Console().print(_table(report))
    for line in (*_engines(report), *_huge_pages(report), *_registries(report)):
        typer.echo(line)


MIB = 1 << 20
OLD_S = 60.0
"""Seconds from which a prediction is marked as based on old steps."""
SLOW = 1.5
"""Ratio of recent step times to the prediction from which they are marked as slow."""
COLUMNS = (
    "running",
    "waiting",
    "queued\ntokens",
    "KV blocks\nused",
    "sampled",
    "tokens/s",
)


def _table(report: dict[str, Any]) -> Table:
    table = Table(
        title=f"{count_of(report['num_waiting'], 'request')} waiting for a replica",
        box=SIMPLE,
        pad_edge=False,
        padding=0,
    )
    table.add_column("replica", no_wrap=True)
    table.add_column("state", no_wrap=True)
    for name in COLUMNS[:-1]:
        table.add_column(name, justify="right", no_wrap=True)
    table.add_column(COLUMNS[-1], justify="right")  # words: they may break, where numbers must not
    for pool, replicas in report["pools"].items():
        for replica in replicas:
            table.add_row(replica["replica"], *_cells(replica, pool))
    return table


def _cells(replica: dict[str, Any], pool: str) -> list[str]:
    if not replica["is_reachable"]:
        return [f"[red]{_trouble(replica)}[/red]", *["-"] * len(COLUMNS)]
    num_blocks = replica["num_blocks"]
    num_used = num_blocks - replica["num_free_blocks"]
    return [
        _state(replica, pool),
        str(replica["num_running"]),
        str(replica["num_waiting"]),
        str(replica["num_queued_tokens"]),
        f"{num_used} of {num_blocks}",
        f"{replica['metrics'].get('tokens_sampled_total', 0):.0f}",
        _pace(replica["metrics"], pool),
    ]


def _state(replica: dict[str, Any], pool: str) -> str:
    """Its state, with its role if that is not the one in its name (after a flip)."""
    flip = replica.get("flip")
    if flip and not flip["failure"]:
        return f"[yellow]to {flip['to']}[/yellow]"
    if not replica["is_ready"]:
        return "[yellow]draining[/yellow]"
    return f"[green]as {pool}[/green]" if replica.get("is_flipped") else "[green]ready[/green]"


def _pace(metrics: dict[str, float], pool: str) -> str:
    """The speed that its step-time fit predicts, with warnings."""
    rate = metrics.get(f"{pool}_tokens_per_second")
    if rate is None:
        return "-"
    age_s, slowness = metrics["step_times_age_seconds"], metrics["slowness"]
    if slowness >= SLOW:
        return f"{rate:.0f}, {slowness:.1f} x slower"
    return f"{rate:.0f}" if age_s < OLD_S else f"{rate:.0f}, {age_s:.0f} s ago"


def _engines(report: dict[str, Any]) -> list[str]:
    """Lines that describe the replicas' engines; usually one per pool."""
    said = [
        f"{pool}: {_engine(replica['engine'])}"
        for pool, replicas in report["pools"].items()
        for replica in replicas
        if replica.get("engine")
    ]
    return list(dict.fromkeys(said))


def _huge_pages(report: dict[str, Any]) -> list[str]:
    """How much KV is on huge pages, if they are used."""
    told = [
        f"{replica['replica']} {replica['metrics']['kv_huge_page_bytes'] / MIB:.0f} MiB"
        for replicas in report["pools"].values()
        for replica in replicas
        if "kv_huge_page_bytes" in replica.get("metrics", {})
    ]
    return [f"KV on pages of 2 MB: {', '.join(told)}"] if told else []


def _registries(report: dict[str, Any]) -> list[str]:
    """Whether each of several registries answers the gateway."""
    said = [
        f"{one['registry']} knows {count_of(one['num_replicas'], 'replica')}"
        if one["is_heard"]
        else f"{one['registry']} does not answer ({one['trouble']})"
        for one in report.get("registries", ())
    ]
    return [f"registries: {', '.join(said)}"] if said else []


def _engine(facts: dict[str, Any]) -> str:
    is_rounded = facts["quantize"] != "none"
    weights = f"{facts['quantize']} weights" if is_rounded else "weights as they are"
    threads = f" on {count_of(facts['num_threads'], 'thread')}" if facts["device"] == "cpu" else ""
    num_ranks = facts.get("num_ranks", 1)
    ranks = f"{num_ranks} ranks of " if num_ranks > 1 else ""
    return (
        f"{facts['model']} ({facts['architecture']}), {facts['dtype']}, {weights}, "
        f"KV {facts['kv_dtype']}; {ranks}{facts['device']}, {facts['kernels']} kernels by "
        f"{facts['passes']}{threads}"
    )


def _trouble(replica: dict[str, Any]) -> str:
    is_refused = "cluster token" in replica.get("trouble", "")
    return "refused: cluster token" if is_refused else "unreachable"
