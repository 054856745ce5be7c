"""The applications that Serve runs on the cluster this process is connected to.

Those of a document (`serve deploy`, a RayService, `baton deploy`) are known by that document, and
Serve takes all of them at once: whoever changes one sends the others as they are.
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

from baton.core.errors import InvalidConfig
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
"""The status of an application that is on its way out."""
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
    """Log file, below the logs of its node."""


def start_serve(*, is_own_cluster: bool = False) -> None:
    """Where it does not run yet. Gateways bind ports of their own: no proxies.

    Processes of our own cluster have the environment already, and the workers that stand by there
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
    except ActorAlreadyExistsError:  # somebody else has started it since we looked
        start()


def served() -> dict[str, Plain]:
    """What Serve says of its applications, by name; nothing where Serve does not run."""
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return {}
    found: dict[str, Plain] = client.get_serve_details()["applications"]
    return found


def deployed(name: str) -> Plain | None:
    """The document of an application; None if there is none of this name, or if it has none."""
    document: Plain | None = served().get(name, {}).get("deployed_app_config")
    return document


def _standing(name: str) -> Plain | None:
    """What `deployed` gives, but only of an application that is to stay."""
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
            f"the application {name} was started by `baton serve`, or by a program: it is changed "
            "where that was; `baton deploy` starts one that can be changed from anywhere"
        )
    raise InvalidConfig(
        f"no application is called {name!r}; there are: {', '.join(apps) or 'none'}"
    )


def apply(document: Plain) -> Plain:
    """Let Serve bring one application to what `document` says, but for numbers that a planner has
    set; others stay as they are. Returns what was sent.

    Raises InvalidConfig if its name is somebody else's, or its ports are those of another.
    """
    start_serve()
    with sole_change():
        check_name(document)
        name = document["name"]
        document = with_planned(_standing(name), document, partial(registry_time, name))
        _put(document)
    return document


def apply_scaled(name: str, counts: Mapping[str, int], hold_s: float | None = None) -> Plain:
    """Give pools of an application other numbers of replicas, and return its new document. Its
    planner leaves them so for `hold_s`; None: for as long as it is configured. What holds of other
    pools stays.

    Raises InvalidConfig for what is no pool, or no number of replicas of it.
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
    """Give pools of an application the numbers of replicas that its planner decided on, and tell
    for how many it asks for nodes; False if they are not `before` any more, or are held: somebody
    else was faster.

    Raises InvalidConfig for an application without a document.
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
    """Unix time by the clock that an application's holds are kept by: of the first of its
    registries that answers, as that one plans. By our own if none does."""
    for registry in _registries(name):
        try:
            handle = serve.get_deployment_handle(registry, name)
            return float(handle.unix_time.remote().result(timeout_s=REGISTRY_TIMEOUT_S))
        except (TimeoutError, KeyError, RayError, RayServeException):  # KeyError: it has none
            continue
    return time.time()


def _registries(name: str) -> list[str]:
    """The deployments of an application's registries, in the order in which they are asked."""
    known = served().get(name, {}).get("deployments", {})
    return sorted(filter(is_registry, known)) or [REGISTRY]


def messages(name: str) -> dict[str, str]:
    """What Serve says of the deployments of an application, by their names."""
    deployments = served().get(name, {}).get("deployments", {})
    return {one: details.get("message") or "" for one, details in deployments.items()}


def remove(name: str) -> None:
    """Have one application end; others stay. It drains first."""
    with sole_change():
        if deployed(name) is None:
            serve.delete(name, _blocking=False)
        else:
            _send(_others(name))


def check_name(document: Plain) -> None:
    """Raises InvalidConfig if an application has this name that `baton deploy` did not make."""
    name = document["name"]
    details = served().get(name)
    if details is None or details["status"] == LEAVING:
        return
    known = details.get("deployed_app_config")
    if known is None or known.get("import_path") != document["import_path"]:
        whose = "by `baton serve`, or by a program" if known is None else "from other code"
        raise InvalidConfig(
            f"ray.app_name: an application called {name!r} was started {whose} on this cluster, "
            "and would be replaced; give another name with --app-name, or end that one first"
        )


def check_ports(config: DeploymentConfig) -> None:
    """Raises InvalidConfig for a port of another application: gateways share theirs with their
    successors, so on one node clients of the one would meet the other's model."""
    own = {"gateway.port": config.gateway.port, "gateway.grpc_port": config.gateway.grpc_port}
    for name, details in served().items():
        if name == config.ray.app_name or details["status"] == LEAVING:
            continue
        theirs = _ports_of(name, details)
        for setting, port in own.items():
            if port and port in theirs:
                raise InvalidConfig(
                    f"{setting}: {port} is a port of the application {name!r} on this "
                    "cluster; choose another, or 0 for any"
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
    """What a gateway answers to /debug/status, asked through Ray. Raises what Ray raises."""
    handle = serve.get_deployment_handle(GATEWAY, name)
    status: dict[str, Any] = handle.status.remote().result(timeout_s=timeout_s)
    return status


async def flip_any(name: str, giver: Role, taker: Role) -> ReplicaId:
    """Have a gateway choose who of a role takes the other. Raises what Ray raises, and what
    gateways do."""
    handle = serve.get_deployment_handle(GATEWAY, name)
    told = await asyncio.wait_for(handle.flip.remote(giver.value, taker.value), FLIP_TIMEOUT_S)
    return ReplicaId(told["replica"])


def read_log(replica: ServedReplica, offset: int, num_lines: int) -> tuple[str, int]:
    """What a replica has logged from `offset` on, and where that ends; from the beginning of its
    last lines if `offset` is negative. Raises what Ray raises if its node is gone."""
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
    """Ports of an application without a document; none if it does not say, as it does not listen
    yet."""
    try:
        return gateway_ports(name, PORTS_TIMEOUT_S)
    except (TimeoutError, RayError, RayServeException):
        return ()


def _put(document: Plain) -> None:
    """Send a document. To be called in a `sole_change`: others are sent as they were when they were
    read."""
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
