"""One application of a Ray cluster as a table: a line a replica."""

from __future__ import annotations

from typing import Any

from rich.box import SIMPLE
from rich.table import Table

from baton.platform.config.live import GATEWAY, is_registry

COLUMNS = ("runs", "waits", "queued\ntokens", "KV\nused")


def application_table(application: dict[str, Any]) -> Table:
    """The table of `baton top`: an application by Serve and by its gateway."""
    troubles = [
        f"{row['replica']}: {trouble}"
        for row in application["replicas"]
        if (trouble := row["says"].get("trouble"))
    ]
    said = "\n".join(filter(None, [application["message"], *application["trouble"], *troubles]))
    table = Table(
        title=f"{application['application']}: {application['status']}",
        caption=said or None,
        box=SIMPLE,
        pad_edge=False,
        padding=0,
    )
    for name in ("replica", "state", "node"):
        table.add_column(name, no_wrap=True)
    table.add_column("pid", justify="right", no_wrap=True)
    for name in COLUMNS:
        table.add_column(name, justify="right", no_wrap=True)
    for row in application["replicas"]:
        table.add_row(
            row["replica"],
            _state(row),
            row["node"],
            str(row["pid"] or ""),
            *_load(row["says"]),
        )
    return table


def _state(row: dict[str, Any]) -> str:
    """State of a process: Serve's, or for a running one the gateway's."""
    said, state = row["says"], row["state"].lower()
    if state == "running" and said.get("is_heard") is False:
        return "[red]no answer[/red]"
    if state != "running" or row["deployment"] == GATEWAY or is_registry(row["deployment"]):
        return str(state)
    if not said:
        return "not ready"
    if not said["is_reachable"]:
        return "[red]unreachable[/red]"
    if not said["is_ready"]:
        return "[yellow]draining[/yellow]"
    role = f" as {said['role']}" if said["is_flipped"] else ""
    return f"[green]ready{role}[/green]"


def _load(said: dict[str, Any]) -> list[str]:
    if not said.get("is_reachable"):
        return [""] * len(COLUMNS)
    used = said["num_blocks"] - said["num_free_blocks"]
    return [
        str(said["num_running"]),
        str(said["num_waiting"]),
        str(said["num_queued_tokens"]),
        f"{used / said['num_blocks']:.0%}",
    ]
