"""The Serve document of a deployment, for `serve deploy` and RayService.

    name, import_path, runtime_env
    args            arguments of the processes: another value restarts all of them
    deployments     for each: the number of replicas, and live settings (user_config)

`baton deploy` sends the same. Pure: nothing here knows a cluster.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Any

from baton.core.errors import InvalidConfig
from baton.core.replicas import Role
from baton.platform.config.deployment import DeploymentConfig, override, parse_config
from baton.platform.config.live import (
    COUNTED,
    DECODE,
    GATEWAY,
    LIVE,
    PREFILL,
    REGISTRY,
    Change,
    Plain,
    changes,
    divide,
    is_registry,
    merged,
    registry_names,
    with_live,
)
from baton.platform.security.secrets import check_named

IMPORT_PATH = "baton.platform.serve_app:app"
SHUTDOWN_SLACK_S = 5.0
"""Seconds after the drain until Serve kills a replica."""
CONTROLLER_OPTIONS: Plain = {
    "runtime_env": {"env_vars": {"RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1"}}
}
"""A replica that fails its health checks is killed without a drain."""
POOLS = {"prefill": PREFILL, "decode": DECODE, "gateway": GATEWAY}
"""Pools that can be scaled, with the names of their deployments."""
BOUNDS = "autoscaling_config"
OF_THE_DRIVER = ("address", "app_name", "runtime_env", "dashboard")
"""Settings of `ray` that only the driver needs."""


def document(config: DeploymentConfig) -> Plain:
    """The complete file for `serve deploy`. Raises InvalidConfig if `config` contains secrets."""
    return {
        "proxy_location": "Disabled",
        "controller_options": CONTROLLER_OPTIONS,
        "applications": [application(config)],
    }


def application(config: DeploymentConfig) -> Plain:
    """One application of the document; equal for equal configurations."""
    check_named(config.gateway)
    division = divide(config)
    args = dict(division.fixed)
    ray = {key: value for key, value in args.pop("ray", {}).items() if key not in OF_THE_DRIVER}
    if ray:
        args["ray"] = ray
    found: Plain = {
        "name": config.ray.app_name,
        "route_prefix": None,  # gateways bind ports of their own
        "import_path": IMPORT_PATH,
        "args": args,
        "deployments": [
            _deployment(config, name, division.live[_kind(name)]) for name in _names(config)
        ],
    }
    if config.ray.runtime_env:
        found["runtime_env"] = config.ray.runtime_env
    return found


def configuration(deployed: Plain) -> DeploymentConfig:
    """The configuration of a deployed application. Raises InvalidConfig."""
    config = parse_config(deployed.get("args", {}))
    for deployment in deployed.get("deployments", ()):
        config = with_live(config, deployment.get("user_config") or {})
    ray = {"ray.app_name": deployed["name"], "ray.runtime_env": deployed.get("runtime_env") or {}}
    return override(config, {**_counts(deployed), **ray})


def scaled(
    deployed: Plain,
    counts: Mapping[str, int],
    *,
    held_until: Mapping[Role, float] | None = None,
    asked: Mapping[Role, int] | None = None,
) -> Plain:
    """The application's document with other numbers of replicas, by pool, without restarts.
    `held_until`: until when the planner holds these roles. `asked`: replicas for which nodes are
    requested. Raises InvalidConfig for a change that is not possible in place.
    """
    before = configuration(deployed)
    _check_counts(before, counts)
    rules: Plain = {f"asked_{role.value}": number for role, number in (asked or {}).items()}
    if held_until is not None:
        rules["held_until"] = {role.value: at for role, at in held_until.items()}
    if before.planner.is_asleep:  # all pools wake; those not named get their earlier number
        rules["is_asleep"] = False
        counts = {**{role.value: before.pool(role).replicas for role in _roles(before)}, **counts}
    told = {pool: {"replicas": count} for pool, count in counts.items()}
    result = deepcopy(deployed)
    known = {one["name"]: one for one in result.setdefault("deployments", [])}
    for name in _names(before):
        if _kind(name) not in COUNTED:
            continue
        one = known.get(name)
        if one is None:
            one = {"name": name}
            result["deployments"].append(one)
        one["user_config"] = merged(one.get("user_config") or {}, told)
        if is_registry(name) and rules:
            one["user_config"] = merged(one["user_config"], {"planner": rules})
        if name == GATEWAY and "is_asleep" in rules:
            one["user_config"] = merged(one["user_config"], {"planner": {"is_asleep": False}})
        for pool, count in counts.items():
            if POOLS[pool] == name:
                one.update(_number(count, is_bounded=BOUNDS in one))
    return result


def asleep(deployed: Plain) -> Plain:
    """The application's document without prefill and decode replicas, until it is `scaled`.

    Raises InvalidConfig for a document without bounds, in which this would restart everything.
    """
    before, result = configuration(deployed), deepcopy(deployed)
    pools = {POOLS[role.value] for role in _roles(before)}
    bounded = {one["name"] for one in result["deployments"] if BOUNDS in one}
    if pools - bounded:
        raise InvalidConfig(
            f"planner.idle_s: {' and '.join(sorted(pools - bounded))} must have `{BOUNDS}` in the "
            "document, as `baton config document` writes it"
        )
    for one in result["deployments"]:
        if one["name"] in pools:
            one.update(_number(0, is_bounded=True))
        if one["name"] == GATEWAY or is_registry(one["name"]):
            told = {"planner": {"is_asleep": True}}
            one["user_config"] = merged(one.get("user_config") or {}, told)
    return result


def _check_counts(before: DeploymentConfig, counts: Mapping[str, int]) -> None:
    for pool, count in counts.items():
        if pool not in POOLS:
            raise InvalidConfig(f"no pool is called {pool!r}; there are {', '.join(POOLS)}")
        if count < 1 or (pool == "prefill" and before.prefill.replicas == 0):
            raise InvalidConfig(
                f"{pool} {count}: a pool cannot be scaled from or to zero without a restart; set "
                f"{pool}.replicas in the file, and `baton deploy` it"
            )


def with_planned(
    deployed: Plain | None, wanted: Plain, clock: Callable[[], float] = time.time
) -> Plain:
    """The document `wanted`, with the numbers that a planner has set in `deployed`, clipped to the
    new limits, and with their holds. Held numbers stay outside the limits, too, as with the
    planner.

    `clock`: of the holds.
    """
    after = configuration(wanted)
    if deployed is None or not after.planner.sets_counts:
        return wanted
    try:
        before = configuration(deployed)
    except InvalidConfig:  # written by another version
        return wanted
    if not before.planner.sets_counts:
        return wanted
    now = clock() if before.planner.held_until else 0.0
    counts = {
        role.value: count
        if before.planner.held_s(role, now)
        else min(max(count, after.planner.least(role)), after.planner.most(role))
        for role, count in before.wanted_replicas.items()
        if count and after.wanted_replicas.get(role)
    }
    both = before.planner.held_until.keys() | after.planner.held_until.keys()
    held_until = {
        role: max(one.planner.held_until.get(role, 0.0) for one in (before, after)) for role in both
    }
    return scaled(wanted, counts, held_until=held_until or None)


def with_numbers_of(deployed: Plain, told: Plain) -> Plain:
    """`told`, another copy of the application's document, with the current numbers of `deployed`:
    of replicas, and of its planner.

    Returns `told` itself if nothing differs. Raises InvalidConfig if either cannot be read.
    """
    now, then = configuration(deployed), configuration(told)
    if _numbers(now) == _numbers(then):
        return told
    counts = {pool: getattr(now, pool).replicas for pool in POOLS}
    if not (now.prefill.replicas and then.prefill.replicas):
        del counts["prefill"]
    asked = {role: now.planner.asked(role) for role in Role}
    return scaled(told, counts, held_until=now.planner.held_until or None, asked=asked)


def difference(deployed: Plain, wanted: Plain) -> tuple[list[Change], bool]:
    """The changes from one document to another, and whether they restart all processes."""
    keys = ("args", "import_path", "runtime_env")
    restarts = any((deployed.get(key) or {}) != (wanted.get(key) or {}) for key in keys)
    if _bounded(deployed) != _bounded(wanted):  # Serve treats that as other code
        restarts = True
    return changes(configuration(deployed), configuration(wanted)), restarts


def drain_limit_s(config: DeploymentConfig, name: str) -> float:
    """Seconds that Serve gives a replica of this deployment to drain."""
    return SHUTDOWN_SLACK_S + (0.1 if is_registry(name) else config.health.drain_s)


def _names(config: DeploymentConfig) -> list[str]:
    names = [name for name in LIVE if name != REGISTRY]
    if not config.prefill.replicas:
        names.remove(PREFILL)
    return [*names, *registry_names(config.registry.replicas)]


def _kind(name: str) -> str:
    """The kind of deployment, whose live settings one of this name has."""
    return REGISTRY if is_registry(name) else name


def _deployment(config: DeploymentConfig, name: str, live: Plain) -> Plain:
    found: dict[str, Any] = {"name": name, "user_config": live}
    for pool, deployment in POOLS.items():
        if deployment == name:
            count = 0 if _sleeps(config, pool) else getattr(config, pool).replicas
            found.update(
                _number(count, is_bounded=bool(config.planner.idle_s and pool != "gateway"))
            )
    found["health_check_period_s"] = config.health.check_period_s
    found["graceful_shutdown_timeout_s"] = drain_limit_s(config, name)
    return found


def _roles(config: DeploymentConfig) -> list[Role]:
    """Roles that have a pool."""
    return [role for role in Role if config.pool(role).replicas]


def _sleeps(config: DeploymentConfig, pool: str) -> bool:
    return config.planner.is_asleep and pool != "gateway"


def _bounded(deployed: Plain) -> int:
    return sum(BOUNDS in one for one in deployed.get("deployments", ()))


def _number(count: int, *, is_bounded: bool) -> Plain:
    """A number of replicas for Serve. Serve accepts 0 only as equal bounds of its autoscaler, and
    bounds only if the deployment had them before."""
    if not is_bounded:
        return {"num_replicas": count}
    return {
        BOUNDS: {"min_replicas": count, "initial_replicas": count, "max_replicas": max(count, 1)}
    }


def _counted(one: Plain) -> int | None:
    """The number of replicas in a document; None if it has none, as for sleeping pools."""
    if bounds := one.get(BOUNDS):
        return bounds.get("min_replicas") or None
    count: int | None = one.get("num_replicas")
    return count


def _numbers(config: DeploymentConfig) -> tuple[Any, ...]:
    planner = config.planner
    return (
        [getattr(config, pool).replicas for pool in POOLS],
        [planner.asked(role) for role in Role],
        planner.held_until,
    )


def _counts(deployed: Plain) -> dict[str, int]:
    pool_by_name = {name: pool for pool, name in POOLS.items()}
    return {
        f"{pool_by_name[one['name']]}.replicas": count
        for one in deployed.get("deployments", ())
        if one["name"] in pool_by_name and (count := _counted(one)) is not None
    }
