"""`baton k8s`: what operators and pods of a Kubernetes cluster need."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from baton.platform.cli.terminal.errors import told_in_one_line
from baton.platform.kubernetes.rendered import read_service
from baton.platform.kubernetes.upgrade import Effect, Outcome, predict

app = typer.Typer(help="On Kubernetes, with KubeRay.", no_args_is_help=True)

WIDEST = 60
"""Characters of a value that are shown."""


@app.command()
def diff(
    old: Annotated[Path, typer.Argument(help="Manifests with a RayService, or values.")],
    new: Annotated[Path, typer.Argument(help="Likewise, as they shall be.")],
    chart: Annotated[
        Path | None, typer.Option("--chart", help="The chart, to render values with `helm`.")
    ] = None,
    new_operator: Annotated[
        bool, typer.Option("--new-operator", help="KubeRay's operator is upgraded as well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of lines.")] = False,
) -> None:
    """What KubeRay would make of a change: in place, another cluster, or nothing."""
    with told_in_one_line("baton k8s diff"):
        before, after = read_service(old, chart), read_service(new, chart)
    effects = predict(before, after, has_new_operator=new_operator)
    if as_json:
        typer.echo(msgspec.json.format(msgspec.json.encode([asdict(e) for e in effects])))
        return
    for outcome in Outcome:
        for effect in (one for one in effects if one.outcome is outcome):
            typer.echo(f"{outcome.upper():<28}{_change(effect)}\n{'':<28}{effect.reason}")
    typer.echo(_sum(effects))


@app.command()
def leave(
    seconds: Annotated[
        float, typer.Option(min=1, help="How long the node may take to be empty.")
    ] = 90.0,
) -> None:
    """Empty this Ray node before its pod ends: replicas come up elsewhere, requests move there."""
    from baton.platform.cluster.node_departure import own_node, wait_until_empty

    with told_in_one_line("baton k8s leave"):
        wait_until_empty(own_node(), seconds, typer.echo)


def _change(effect: Effect) -> str:
    return f"{effect.path}: {_shown(effect.before)} -> {_shown(effect.after)}"


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= WIDEST else f"{text[:WIDEST]}..."


def _sum(effects: list[Effect]) -> str:
    if not effects:
        return "nothing changes"
    if any(effect.outcome is Outcome.NEW_CLUSTER for effect in effects):
        return "a new cluster comes up beside the old one, with as many devices again"
    if all(effect.outcome is Outcome.IGNORED for effect in effects):
        return "nothing happens"
    return "the running cluster stays"
