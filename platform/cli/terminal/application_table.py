"""One application of a Ray cluster as a table: a line a replica."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.table import Table

COLUMNS = ("running", "waiting", "queued\ntokens", "KV blocks\nused")


def application_table(application: dict[str, Any]) -> Table:
    """As `baton top` knows it: by Serve's word, and by its gateway's."""
    said = "\n".join(filter(None, [application["message"], *application["trouble"]]))
    table = Table(
        title=f"{application['application']}: {application['status']}",
        caption=said or None,
        box=SIMPLE,
        pad_edge=False,
        padding=0,
    )
    for name in ("replica", "Serve says", "it takes requests", "node", "pid"):
        table.add_column(name, no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in application["replicas"]:
        table.add_row(
            row["replica"],
            row["state"].lower(),
            _readiness(row),
            row["node"],
            str(row["pid"] or ""),
            *_load(row["says"]),
        )
    return table


def _readiness(row: dict[str, Any]) -> str:
    said = row["says"]
    if not said:
        return "" if row["deployment"] in ("Gateway", "Registry") else "not yet"
    if not said["is_reachable"]:
        return f"[red]{said.get('trouble') or 'unreachable'}[/red]"
    if not said["is_ready"]:
        return "[yellow]draining[/yellow]"
    return f"[green]yes, as {said['role']}[/green]" if said["is_flipped"] else "[green]yes[/green]"


def _load(said: dict[str, Any]) -> list[str]:
    if not said.get("is_reachable"):
        return [""] * len(COLUMNS)
    used = said["num_blocks"] - said["num_free_blocks"]
    return [
        str(said["num_running"]),
        str(said["num_waiting"]),
        str(said["num_queued_tokens"]),
        f"{used} of {said['num_blocks']}",
    ]
