"""Deploys, scales and ends an application on a Ray cluster.

Requires a connection (`cluster_session.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial

import typer

from baton.core.errors import DeadlineExceeded, InvalidConfig
from baton.core.replicas import counts_by_role
from baton.platform.cli.runs.deploy import Ports, come_up
from baton.platform.cli.terminal.progress import start_bars
from baton.platform.cli.terminal.start_report import StartReport
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.config.live import Change, Plain

POLL_S = 0.5
STATUS_TIMEOUT_S = 10.0


def told_before(wanted: Plain, name: str) -> list[str]:
    """Lines that say what deploying `wanted` would change. Raises InvalidConfig if the name is
    taken."""
    from baton.platform.cluster.applications.applications import check_name, deployed, registry_time
    from baton.platform.cluster.applications.serve_document import difference, with_planned

    check_name(wanted)
    known = deployed(name)
    if known is None:
        return [f"{name} starts: nothing of this name runs"]
    clock = partial(registry_time, name)
    found, restarts = difference(known, with_planned(known, wanted, clock))
    if not found and not restarts:
        return [f"{name} stays as it is"]
    width = max((len(one.path) for one in found), default=0)
    lines = [f"{_how(one):8} {one.path:{width}}  {_shown(one)}" for one in found]
    if not restarts:
        return [*lines, f"{name} goes on: no process is started anew"]
    if all(one.is_live for one in found):
        lines.append("restart  the document that runs was made in another way")
    return [*lines, f"{name}: all processes are started anew, some of each pool at a time"]


def deploy_document(wanted: Plain, config: DeploymentConfig, *, waits: bool) -> None:
    """Deploy the document, and report the progress. Raises as `come_up`."""
    from baton.platform.cluster.applications.applications import apply
    from baton.platform.cluster.applications.serve_document import configuration

    sent = apply(wanted)
    planned = configuration(sent)
    if planned.wanted_replicas != config.wanted_replicas:
        counts = counts_by_role(planned.wanted_replicas)
        typer.echo(f"the planner has set {counts}, which is kept; `baton scale` changes it")
    _follow(sent, planned, waits=waits)


def follow_up(config: DeploymentConfig) -> Ports:
    """Return the ports once the application has the configured state."""
    on_cluster = override(config, {"ray.address": config.ray.address or "auto"})
    with start_bars() as bars:
        say: Callable[[str], None] = (lambda line: None) if bars.are_drawn else typer.echo
        report = StartReport(say, bars)
        with report.ticking():
            return come_up(on_cluster, report)


def scale(name: str, counts: dict[str, int], *, hold_s: float | None, waits: bool) -> None:
    """`hold_s`: seconds for which a planner leaves these numbers; None: as configured. Raises
    InvalidConfig for an unknown pool, or an invalid number.
    """
    from baton.platform.cluster.applications.applications import apply_scaled
    from baton.platform.cluster.applications.serve_document import configuration

    wanted = apply_scaled(name, counts, hold_s)
    _follow(wanted, configuration(wanted), waits=waits)


def undeploy(name: str, limit_s: float) -> None:
    """Return when it has ended. Raises InvalidConfig, DeadlineExceeded."""
    from baton.platform.cluster.applications.applications import remove, served

    if name not in served():
        there = ", ".join(served()) or "none"
        raise InvalidConfig(f"no application is called {name!r}; there are: {there}")
    remove(name)
    deadline = time.monotonic() + limit_s
    while name in served():
        if time.monotonic() > deadline:
            raise DeadlineExceeded(
                f"{name} has not ended after {limit_s:g} s; it is still shutting down"
            )
        time.sleep(POLL_S)


def _follow(wanted: Plain, config: DeploymentConfig, *, waits: bool) -> None:
    if not waits:
        typer.echo(f"{wanted['name']} is on its way; `baton top` shows how far it is")
        return
    from baton.platform.cluster.applications.applications import gateway_status

    port, grpc_port, admin_port = follow_up(config)
    operators = f"; operators on {admin_port} at {config.gateway.admin_host}" if admin_port else ""
    pools = gateway_status(wanted["name"], STATUS_TIMEOUT_S)["pools"]
    flipped = [row["replica"] for rows in pools.values() for row in rows if row["is_flipped"]]
    in_other_role = f" ({', '.join(flipped)} in the other role)" if flipped else ""
    typer.echo(
        f"{wanted['name']} serves {config.model_name} with "
        f"{counts_by_role(config.wanted_replicas)}{in_other_role}: HTTP on port {port}, "
        f"gRPC on {grpc_port} of its gateways' nodes{operators}"
    )


def _how(change: Change) -> str:
    return "in place" if change.is_live else "restart"


def _shown(change: Change) -> str:
    return f"{_value(change.before)} -> {_value(change.after)}"


def _value(value: object) -> str:
    return "(none)" if value in (None, "", []) else str(value)
