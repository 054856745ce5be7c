"""`baton k8s`: commands for operators and pods of a Kubernetes cluster."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer
import yaml

from baton.core.clock import monotonic
from baton.core.errors import InvalidConfig
from baton.platform.cli.terminal.errors import complain, errors_in_one_line
from baton.platform.kubernetes.rendered import files_of, read_service
from baton.platform.kubernetes.upgrade import (
    SERVE,
    Effect,
    Outcome,
    predict,
    predict_annotations,
)

app = typer.Typer(help="On Kubernetes, with KubeRay.", no_args_is_help=True)

WIDEST = 60
"""The most characters shown of a value."""


@app.command()
def diff(
    old: Annotated[
        str,
        typer.Argument(help="Manifests with a RayService, or values: files with commas between."),
    ],
    new: Annotated[str, typer.Argument(help="Likewise, as they shall be.")],
    chart: Annotated[
        Path | None, typer.Option("--chart", help="The chart, to render values with `helm`.")
    ] = None,
    new_operator: Annotated[
        bool, typer.Option("--new-operator", help="KubeRay's operator is upgraded as well.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="JSON instead of lines.")] = False,
) -> None:
    """Predict how KubeRay applies a change: in place, with a new cluster, or not at all."""
    with errors_in_one_line("baton k8s diff"):
        before, after = (read_service(files_of(one), chart) for one in (old, new))
        _check_configuration(after.spec, new)
    of_spec = predict(before.spec, after.spec, has_new_operator=new_operator)
    effects = [*predict_annotations(before.annotations, after.annotations, of_spec), *of_spec]
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
    head: Annotated[
        bool, typer.Option("--head", help="The head: stay while other nodes leave, then go.")
    ] = False,
) -> None:
    """Empty this Ray node before its pod ends: replicas start elsewhere, and requests move
    there."""
    from baton.platform.cluster.nodes.node_departure import (
        ANSWERED_WITHIN_S,
        hard_limit,
        own_node,
        wait_for_others,
        wait_until_empty,
    )

    command = "baton k8s leave"
    deadline = monotonic() + seconds

    def end() -> None:
        complain(command, "no answer from Ray in the time that this node has; it ends as it is")
        os._exit(1)

    # The error is printed before the connection is closed, since that may hang, too.
    with hard_limit(seconds, end), ExitStack() as connection, errors_in_one_line(command):
        with hard_limit(ANSWERED_WITHIN_S if head else seconds, end):
            node = connection.enter_context(own_node(end))
        # A second to say what is left.
        wait = wait_for_others if head else wait_until_empty
        wait(node, max(0.0, deadline - monotonic() - 1), typer.echo)


@app.command()
def follow(
    service: Annotated[str, typer.Argument(help="The RayService.", metavar="RAYSERVICE")],
    namespace: Annotated[str, typer.Option(envvar="POD_NAMESPACE", help="Where it is.")],
    ray_url: Annotated[
        str | None,
        typer.Option(help="Ray's dashboard; without it that of the RayService's head."),
    ] = None,
    api_url: Annotated[
        str | None,
        typer.Option(help="The API server, as `kubectl proxy` has it; without it the pod's own."),
    ] = None,
    topology_key: Annotated[
        list[str] | None,
        typer.Option(help="A label of nodes that says where they are; the widest first."),
    ] = None,
    log_format: Annotated[str, typer.Option(help="text or json.")] = "text",
) -> None:
    """Have worker groups follow the numbers of replicas, until it is stopped. The chart runs it
    where planner.nodes is kuberay."""
    from baton.platform.cli.runs.follow import FollowOptions, run_follow

    with errors_in_one_line("baton k8s follow"):
        run_follow(
            FollowOptions(
                service=service,
                namespace=namespace,
                ray_url=ray_url or f"http://{service}-head-svc.{namespace}:8265",
                api_url=api_url,
                topology_keys=tuple(topology_key or ()),
                log_format="json" if log_format == "json" else "text",
            )
        )


def _check_configuration(spec: Mapping[str, Any], source: str) -> None:
    """Raises InvalidConfig for what no schema of values refuses, and the application would once
    Serve builds it."""
    from baton.platform.cluster.applications.serve_document import IMPORT_PATH, configuration

    for application in (yaml.safe_load(spec.get(SERVE) or "") or {}).get("applications", ()):
        if application.get("import_path") == IMPORT_PATH:
            try:
                configuration(application)
            except InvalidConfig as error:
                raise InvalidConfig(f"{source}: config: {error}") from error


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
    outcomes = {effect.outcome for effect in effects}
    if {Outcome.RESTART, Outcome.IGNORED} <= outcomes:
        return (
            "the running cluster stays: processes start anew with the new configuration, in pods "
            "as they are"
        )
    return "the running cluster stays"
