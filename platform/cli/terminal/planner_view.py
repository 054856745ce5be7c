"""Shows the planner's state: the pools, its last decision, then changes, newest first."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from rich.box import SIMPLE
from rich.console import Console
from rich.markup import escape
from rich.table import Table

OFF = (
    "no planner: the numbers of replicas are those that are configured; planner.enabled: true lets "
    "them follow the load"
)
SHOWN = 20
COLUMNS = ("planned", "wanted", "ready", "draining")
OF_NODES = ("asked", "places")
"""Columns for managed nodes: replicas for which nodes are requested, and places on existing
nodes."""


def show_planner(console: Console, told: Mapping[str, Any]) -> None:
    """Show what GET /debug/planner answers."""
    if not told["is_enabled"]:
        console.print(OFF)
        if "groups" in told:
            _show_groups(console, told["groups"])
        return
    promise, gateways = told["promise"], told["gateways"]
    console.print(
        f"mode {told['mode']}; promised to {promise['share']:.0%}: a first token in "
        f"{promise['ttft_s']:g} s, each further one in {promise['itl_s']:g} s; "
        f"{gateways['heard']} of {gateways['wanted']} gateways heard"
    )
    table = Table(box=SIMPLE, padding=(0, 1, 0, 0), pad_edge=False)
    table.add_column("replicas")
    has_nodes_made = any("asked" in pool for pool in told["pools"].values())
    columns = (*COLUMNS, *OF_NODES) if has_nodes_made else COLUMNS
    for title in columns:
        table.add_column(title, justify="right")
    for role, pool in told["pools"].items():
        table.add_row(role, *(str(pool[title]) for title in columns))
    console.print(table)
    if "groups" in told:
        _show_groups(console, told["groups"])
    latest, changes = told["latest"], told["changes"]
    if latest is None:
        console.print("it has decided nothing yet")
        return
    _show(console, latest)
    if changes:
        console.print("\nchanges, the latest first:")
    for change in changes[:SHOWN]:
        _show(console, change)
    if len(changes) > SHOWN:
        console.print(f"and {len(changes) - SHOWN} before; --json has them")


def _show_groups(console: Console, groups: Mapping[str, Any]) -> None:
    """Show the state of `baton k8s follow`, or why it is not available."""
    if "trouble" in groups:
        console.print(f"worker groups: {escape(groups['trouble'])}\n")
        return
    looked_at, waits = groups["looked_at"], groups["waits"]
    looked = f"looked at {_time(looked_at)}" if looked_at else "not looked at yet"
    console.print(f"worker groups, {looked}: {'they wait' if waits else 'as they are wanted'}")
    for one in waits:
        console.print(f"  since {_time(one['since'])}  {one['cause']}: {escape(one['why'])}")
    for one in groups["done"][:SHOWN]:
        console.print(f"  {_time(one['at'])}  {escape(one['what'])}")
    console.print()


def _time(at: float) -> str:
    return datetime.fromtimestamp(at).strftime("%H:%M:%S")


def _show(console: Console, one: Mapping[str, Any]) -> None:
    counts = ", ".join(
        f"{role} {before} -> {one['after'][role]}" for role, before in one["before"].items()
    )
    console.print(f"{_time(one['decided_at'])}  {counts}: {escape(one['outcome'])}")
    for reason in one["reasons"]:
        console.print(f"          {escape(reason)}")
