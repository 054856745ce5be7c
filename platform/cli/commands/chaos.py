"""`baton chaos`: lists scenarios, and runs one against a live deployment."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.box import SIMPLE
from rich.console import Console
from rich.table import Table

from baton.client.async_client import AsyncBatonClient
from baton.client.retry import RetryPolicy
from baton.core.wire_security import WireSecurity
from baton.platform.chaos.live import LiveDeployment
from baton.platform.chaos.run import Outcome, ScenarioRun
from baton.platform.chaos.scenario import Scenario, bundled_scenarios, read_scenario
from baton.platform.cli.options.gateway_options import AdminUrl, ApiKey, CaFile, admin_pages
from baton.platform.cli.terminal.errors import errors_in_one_line
from baton.platform.config.deployment import configure
from baton.platform.observe.gateway_pages import GatewayPages
from baton.platform.security.connections import load_security
from baton.platform.security.ray_token import settled
from baton.proto.channels import Channels

PATIENT = RetryPolicy(max_attempts=40, max_delay_s=1.0)
"""Retries for longer than a gateway takes to restart, since its streams must resume."""

app = typer.Typer(
    help="Make faults on purpose in a live deployment, and see what holds.", no_args_is_help=True
)


@app.command("list")
def list_scenarios() -> None:
    """The scenarios that come with Baton."""
    table = Table(box=SIMPLE, pad_edge=False)
    table.add_column("scenario", no_wrap=True)
    table.add_column("what happens")
    table.add_column("s", justify="right")
    for name in bundled_scenarios():
        scenario = read_scenario(name)
        table.add_row(name, scenario.what, f"{scenario.duration_s:g}")
    Console().print(table)


@app.command()
def run(  # noqa: PLR0913 - one parameter an option
    scenario: Annotated[str, typer.Argument(help="One of `baton chaos list`, or a YAML file.")],
    url: AdminUrl = None,
    grpc_url: Annotated[
        str, typer.Option(help="host:port of the gateway's gRPC service.")
    ] = "localhost:8001",
    api_key: ApiKey = None,
    duration: Annotated[
        float | None, typer.Option(min=1, help="Seconds, instead of the scenario's.")
    ] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Instead of the scenario's.")] = None,
    ca_file: CaFile = None,
    config_file: Annotated[
        Path | None,
        typer.Option("-f", "--config", help="The deployment's, if its replicas are secured."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the outcome as JSON.")] = False,
) -> None:
    """Run a scenario against a deployment with `chaos.enabled`; exit 1 if its faults show.

    Every answer must equal the one given without faults, none may hang or be lost, and afterwards
    every KV block and every token must be accounted for.
    """
    with errors_in_one_line("baton chaos"):
        planned = _with_changes(read_scenario(scenario), duration, seed)
        pages = admin_pages(url, api_key, ca_file)
        security = load_security(settled(configure(config_file, {}).security, is_tool=True))
        console = Console(stderr=as_json)
        outcome = asyncio.run(_run(planned, pages, grpc_url, security, console))
    if as_json:
        typer.echo(msgspec.json.encode(dataclasses.asdict(outcome)).decode())
    else:
        console.print(_table(outcome))
    raise typer.Exit(0 if outcome.is_good else 1)


async def _run(
    scenario: Scenario, pages: GatewayPages, grpc_url: str, security: WireSecurity, console: Console
) -> Outcome:
    channels = Channels(security)
    ca_cert = pages.ca_file.read_bytes() if pages.ca_file else None
    is_tls = pages.url.startswith("https:")
    async with AsyncBatonClient(
        grpc_url, api_key=pages.api_key, tls=is_tls, ca_cert=ca_cert, retry=PATIENT
    ) as client:
        deployment = LiveDeployment(pages, client, channels)
        try:
            return await ScenarioRun(scenario, deployment, console.print).run()
        finally:
            await channels.close()


def _with_changes(scenario: Scenario, duration: float | None, seed: int | None) -> Scenario:
    if duration is not None:
        scenario = msgspec.structs.replace(scenario, duration_s=duration)
    return scenario if seed is None else msgspec.structs.replace(scenario, seed=seed)


def _table(outcome: Outcome) -> Table:
    kills, faults = len(outcome.process_faults), outcome.num_faults
    table = Table(title=f"{kills} process faults, {faults} others", box=SIMPLE, pad_edge=False)
    table.add_column("must hold", no_wrap=True)
    table.add_column("", no_wrap=True)
    table.add_column("seen")
    for invariant in outcome.invariants:
        mark = "[green]holds[/green]" if invariant.holds else "[red]BROKEN[/red]"
        table.add_row(invariant.name, mark, invariant.seen)
    return table
