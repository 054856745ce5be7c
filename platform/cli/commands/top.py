"""`baton top`: the applications of a Ray cluster, by Serve and by their gateways."""

from __future__ import annotations

import time
from typing import Annotated, Any

import msgspec
import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live

from baton.platform.cli.options.cluster_options import RayAddress
from baton.platform.cli.runs.cluster_session import connected
from baton.platform.cli.terminal.application_table import application_table
from baton.platform.cli.terminal.errors import errors_in_one_line

PERIOD_S = 2.0
GATEWAY_TIMEOUT_S = 5.0


def top(
    app_name: Annotated[str, typer.Option("--app-name", help="Only this one.")] = "",
    address: RayAddress = "",
    once: Annotated[bool, typer.Option("--once", help="Print it once, and return.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Once, as JSON.")] = False,
) -> None:
    """Show the applications of a Ray cluster: replicas, their nodes, state and load."""
    console = Console()
    with errors_in_one_line("baton top"), connected(address):
        if as_json:
            typer.echo(msgspec.json.encode(_look(app_name)).decode())
        elif once or not console.is_terminal:
            console.print(_drawn(_look(app_name)))
        else:
            _watch(app_name, console)


def _watch(app_name: str, console: Console) -> None:
    with Live(console=console, auto_refresh=False) as live:
        while True:
            live.update(_drawn(_look(app_name)), refresh=True)
            time.sleep(PERIOD_S)


def _drawn(applications: list[dict[str, Any]]) -> RenderableType:
    return Group(*map(application_table, applications)) if applications else "nothing is served"


def _look(app_name: str) -> list[dict[str, Any]]:
    from ray.exceptions import RayError

    from baton.platform.cluster.applications.applications import gateway_status, replicas, served

    found: list[dict[str, Any]] = []
    for name, details in served().items():
        if app_name not in ("", name):
            continue
        known: dict[str, Any] = {}
        trouble = ""
        try:
            if "Gateway" in details["deployments"]:
                known = gateway_status(name, GATEWAY_TIMEOUT_S)
        except (RayError, TimeoutError) as error:
            trouble = f"no gateway answers: {type(error).__name__}"
        pools = known.get("pools", {})
        told = {row["replica"]: {**row, "role": role} for role in pools for row in pools[role]}
        registries = {one["registry"]: one for one in known.get("registries", ())}
        rows = [_row(one, told, registries) for one in replicas(name)]
        status = str(getattr(details["status"], "value", details["status"]))
        messages = [
            f"{deployment}: {it['message']}"
            for deployment, it in details["deployments"].items()
            if it.get("message")
        ]
        found.append(
            {
                "application": name,
                "status": status,
                "message": details.get("message", ""),
                "trouble": [*([trouble] if trouble else []), *messages],
                "replicas": rows,
            }
        )
    return found


def _row(
    one: Any, told: dict[str, dict[str, Any]], registries: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """Serve's view of a replica, with its gateway's."""
    replica_id = f"{one.deployment.lower()}-{one.unique_id}"
    return {
        "replica": replica_id,
        "deployment": one.deployment,
        "state": one.state,
        "node": one.node_ip,
        "node_id": one.node_id,
        "pid": one.pid,
        "says": told.get(replica_id) or registries.get(one.deployment, {}),
    }
