"""Reads and changes the Serve applications of the connected cluster.

Applications that were deployed by document (`serve deploy`, a RayService, `baton deploy`) are known
by it. Serve takes all documents at once, so a change of one sends the others unchanged.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.exceptions import ActorAlreadyExistsError, RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ServeDeploySchema
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from baton.core.errors import DeadlineExceeded, InvalidConfig
from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.platform.cluster.applications.serve_document import (
    CONTROLLER_OPTIONS,
    IMPORT_PATH,
    asleep,
    configuration,
    scaled,
    with_planned,
)
from baton.platform.cluster.applications.sole_change import sole_change
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.config.live import GATEWAY, REGISTRY, Plain, is_registry

LEAVING = "DELETING"
"""Serve's status of an application that is being deleted."""
CONTROLLER_TIMEOUT_S = 60.0
"""Within which Serve's controller answers on a machine that is loaded, too."""
PORTS_TIMEOUT_S = 5.0
REGISTRY_TIMEOUT_S = 5.0
FLIP_TIMEOUT_S = 10.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedReplica:
    """One replica, as Serve knows it."""

    deployment: str
    unique_id: str
    state: str
    node_id: str
    node_ip: str
    pid: int | None
    log_file: str
    """The log file, relative to the node's log folder."""


def start_serve(*, is_own_cluster: bool = False) -> None:
    """Start Serve if it does not run, without proxies, since gateways bind their own ports. In our
    own cluster no runtime environment is set: processes have it already, and prestarted workers
    could not be used with another.
    """
    start = partial(
        serve.start,
        proxy_location="Disabled",
        logging_config={"log_level": logging.ERROR},
        controller_options=None if is_own_cluster else CONTROLLER_OPTIONS,
    )
    try:
        start()
    except ActorAlreadyExistsError:  # started by another process meanwhile
        start()


def served(timeout_s: float = CONTROLLER_TIMEOUT_S) -> dict[str, Plain]:
    """Serve's status of its applications, by name; empty where Serve does not run. Raises
    DeadlineExceeded if its controller has not answered within `timeout_s`.
    """
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return {}
    asked = client._controller.get_serve_instance_details.remote()
    try:
        found: dict[str, Plain] = ray.get(asked, timeout=timeout_s)["applications"]
    except TimeoutError:
        raise DeadlineExceeded(silence_of_serve(timeout_s)) from None
    return found


def silence_of_serve(seconds: float) -> str:
    """What to say of a controller that does not answer."""
    return (
        f"Serve's controller has not answered within {seconds:.0f} s: Ray's head hangs, is "
        "overloaded or cannot be reached"
    )


def deployed(name: str) -> Plain | None:
    """The document of an application; None if there is none of this name, or if it has none."""
    document: Plain | None = served().get(name, {}).get("deployed_app_config")
    return document


def _standing(name: str) -> Plain | None:
    """As `deployed`, but None for an application that is being deleted."""
    details = served().get(name, {})
    document: Plain | None = details.get("deployed_app_config")
    return None if details.get("status") == LEAVING else document


def known_document(name: str) -> Plain:
    """Raises InvalidConfig if there is none."""
    document = deployed(name)
    if document is not None:
        return document
    apps = served()
    if name in apps:
        raise InvalidConfig(
            f"the application {name} was started by `baton serve` or by a program, and can only "
            "be changed there; start it with `baton deploy` to change it from anywhere"
        )
    raise InvalidConfig(
        f"no application is called {name!r}; there are: {', '.join(apps) or 'none'}"
    )


def apply(document: Plain) -> Plain:
    """Deploy `document`, except numbers that a planner has set; other applications are unchanged.
    Returns what was sent. Raises InvalidConfig if its name or a port is taken.
    """
    start_serve()
    with sole_change():
        check_name(document)
        name = document["name"]
        document = with_planned(_standing(name), document, partial(registry_time, name))
        _put(document)
    return document


def apply_scaled(name: str, counts: Mapping[str, int], hold_s: float | None = None) -> Plain:
    """Set numbers of replicas of an application's pools, and return its new document. Its planner
    holds them for `hold_s`; None: as configured. Other pools' holds stay. Raises InvalidConfig for
    an unknown pool, or an invalid number.
    """
    with sole_change():
        known = known_document(name)
        planner, held_until = configuration(known).planner, None
        roles = [role for role in Role if role.value in counts]
        if planner.sets_counts and roles:
            until = registry_time(name) + (planner.hold_s if hold_s is None else hold_s)
            held_until = dict.fromkeys(roles, until)
        document = scaled(known, counts, held_until=held_until)
        _put(document)
    return document


def apply_planned(
    name: str,
    before: Mapping[Role, int],
    counts: Mapping[Role, int],
    asked: Mapping[Role, int],
) -> bool:
    """Set the numbers of replicas that the planner decided on, and those for which it requests
    nodes; False if the numbers are not `before` any more, or are held. Raises InvalidConfig for an
    application without a document.
    """
    with sole_change():
        known = known_document(name)
        config = configuration(known)
        if not config.planner.sets_counts or config.started_replicas != dict(before):
            return False
        changed = {role.value: n for role, n in counts.items() if n != before[role]}
        if any(config.planner.held_s(Role(role), time.time()) for role in changed):
            return False
        is_to_sleep = config.planner.idle_s and not any(counts.values())
        told = asleep(known) if is_to_sleep else scaled(known, changed, asked=asked)
        _send([*_others(name), told])
    return True


def registry_time(name: str) -> float:
    """Unix time by the clock for an application's holds: that of the first of its registries that
    answers, which also plans; else our own."""
    for registry in _registries(name):
        try:
            handle = serve.get_deployment_handle(registry, name)
            return float(handle.unix_time.remote().result(timeout_s=REGISTRY_TIMEOUT_S))
        except (TimeoutError, KeyError, RayError, RayServeException):  # KeyError: it has none
            continue
    return time.time()


def _registries(name: str) -> list[str]:
    """Names of an application's registry deployments, in the order of asking."""
    known = served().get(name, {}).get("deployments", {})
    return sorted(filter(is_registry, known)) or [REGISTRY]


def messages(name: str) -> dict[str, str]:
    """Serve's messages of an application's deployments, by name."""
    deployments = served().get(name, {}).get("deployments", {})
    return {one: details.get("message") or "" for one, details in deployments.items()}


def remove(name: str) -> None:
    """Delete one application, which drains first; others stay."""
    with sole_change():
        if deployed(name) is None:
            serve.delete(name, _blocking=False)
        else:
            _send(_others(name))


def check_name(document: Plain) -> None:
    """Raises InvalidConfig if the name belongs to an application that was not made by `baton
    deploy`."""
    name = document["name"]
    details = served().get(name)
    if details is None or details["status"] == LEAVING:
        return
    known = details.get("deployed_app_config")
    if known is None or known.get("import_path") != document["import_path"]:
        whose = "by `baton serve`, or by a program" if known is None else "from other code"
        raise InvalidConfig(
            f"ray.app_name: this would replace an application {name!r} on this cluster that was "
            f"started {whose}; give another name with --app-name, or end that one first"
        )


def check_ports(config: DeploymentConfig) -> None:
    """Raises InvalidConfig for a port of another application: with SO_REUSEPORT both could bind it
    on one node, and clients would reach the wrong model."""
    own = {"gateway.port": config.gateway.port, "gateway.grpc_port": config.gateway.grpc_port}
    for name, details in served().items():
        if name == config.ray.app_name or details["status"] == LEAVING:
            continue
        theirs = _ports_of(name, details)
        for setting, port in own.items():
            if port and port in theirs:
                raise InvalidConfig(
                    f"{setting}: {port} is a port of the application {name!r} on this cluster; "
                    "choose another, or 0 for any"
                )


def replicas(name: str) -> Iterator[ServedReplica]:
    for deployment, details in served().get(name, {}).get("deployments", {}).items():
        for one in details.get("replicas", ()):
            yield ServedReplica(
                deployment=deployment,
                unique_id=one["replica_id"],
                state=str(getattr(one["state"], "value", one["state"])),
                node_id=one.get("node_id") or "",
                node_ip=one.get("node_ip") or "",
                pid=one.get("pid"),
                log_file=one.get("log_file_path") or "",
            )


def gateway_ports(name: str, timeout_s: float) -> tuple[int, int]:
    """Ports of HTTP and gRPC, which several gateways share. Raises what Ray raises."""
    handle = serve.get_deployment_handle(GATEWAY, name)
    http, grpc, _ = handle.ports.remote().result(timeout_s=timeout_s)
    return http, grpc


def gateway_status(name: str, timeout_s: float) -> dict[str, Any]:
    """A gateway's /debug/status, through Ray. Raises what Ray raises."""
    handle = serve.get_deployment_handle(GATEWAY, name)
    status: dict[str, Any] = handle.status.remote().result(timeout_s=timeout_s)
    return status


async def flip_any(name: str, giver: Role, taker: Role) -> ReplicaId:
    """Let a gateway flip the least loaded replica of `giver` to `taker`. Raises Ray's and gateways'
    errors."""
    handle = serve.get_deployment_handle(GATEWAY, name)
    told = await asyncio.wait_for(handle.flip.remote(giver.value, taker.value), FLIP_TIMEOUT_S)
    return ReplicaId(told["replica"])


def read_log(replica: ServedReplica, offset: int, num_lines: int) -> tuple[str, int]:
    """A replica's log from `offset` on, and its end offset; the last `num_lines` if `offset` is
    negative. Raises what Ray raises if its node is gone."""
    there = NodeAffinitySchedulingStrategy(node_id=replica.node_id, soft=False)
    ask = ray.remote(num_cpus=0)(_tail).options(
        scheduling_strategy=there, name=f"baton logs {replica.unique_id}"
    )
    found: tuple[str, int] = ray.get(ask.remote(replica.log_file, offset, num_lines))
    return found


def _tail(log_file: str, offset: int, num_lines: int) -> tuple[str, int]:
    node = ray._private.worker._global_node
    assert node is not None, "tasks run on nodes"
    path = Path(node.get_logs_dir_path()) / log_file.lstrip("/")
    data = path.read_bytes() if path.exists() else b""
    end = data.rfind(b"\n") + 1
    if offset >= 0:
        return data[min(offset, end) : end].decode(errors="replace"), end
    lines = data[:end].splitlines(keepends=True)[-num_lines:]
    return b"".join(lines).decode(errors="replace"), end


def _ports_of(name: str, details: Plain) -> tuple[int, ...]:
    document = details.get("deployed_app_config")
    if document is None:
        return _bound_ports(name) if GATEWAY in details["deployments"] else ()
    if document.get("import_path") != IMPORT_PATH:
        return ()
    gateway = configuration(document).gateway
    return gateway.port, gateway.grpc_port


def _bound_ports(name: str) -> tuple[int, ...]:
    """Ports of an application without a document; none before it listens."""
    try:
        return gateway_ports(name, PORTS_TIMEOUT_S)
    except (TimeoutError, RayError, RayServeException):
        return ()


def _put(document: Plain) -> None:
    """Send a document with the others unchanged. Call it within `sole_change`, since the others are
    sent as read before."""
    check_ports(configuration(document))
    _send([*_others(document["name"]), document])


def _others(name: str) -> list[Plain]:
    """Documents of the applications that stay."""
    return [
        document
        for other, details in served().items()
        if other != name
        and (document := details.get("deployed_app_config")) is not None
        and details["status"] != LEAVING
    ]


def _send(documents: list[Plain]) -> None:
    client = _get_global_client()
    assert client is not None, "Serve runs"
    client.deploy_apps(ServeDeploySchema.model_validate({"applications": documents}))
