"""Divides the settings into those that apply live and those that need a restart.

    divide(config) -> fixed   arguments of processes: another value restarts them
                      live    by deployment, for running processes: Serve's `user_config`
    with_live(config, told)   the resulting configuration

Numbers of replicas are live, too, except from or to 0, since a pool without replicas is no
deployment.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import msgspec

from baton.platform.config.deployment import DeploymentConfig, parse_config

Plain = dict[str, Any]
"""A part of the tree as plain data."""
Path = tuple[str, ...]
"""The keys that lead to a value; a tuple, since names of tenants may contain dots."""

GATEWAY, DECODE, PREFILL, REGISTRY = "Gateway", "Decode", "Prefill", "Registry"


def registry_names(number: int) -> tuple[str, ...]:
    """The names of the registries' deployments. Each has one replica, since Serve sends a call to
    any replica of a deployment, and each registry must be addressable."""
    return (REGISTRY, *(f"{REGISTRY}-{index}" for index in range(1, number)))


def is_registry(deployment: str) -> bool:
    return deployment == REGISTRY or deployment.startswith(f"{REGISTRY}-")


_COUNTS = ("prefill.replicas", "decode.replicas", "gateway.replicas")
COUNTED = (GATEWAY, DECODE, PREFILL, REGISTRY)
"""The deployments that get the numbers of replicas."""
_OF_ALL = ("log_level", "health.drain_s", "chaos.rules", "chaos.seed")
_OF_REPLICAS = (
    *_OF_ALL,
    *_COUNTS,
    "health.stuck_after_s",
    "health.check_period_s",
    "decode.max_open",  # a replica may have flipped to the other role
    "prefill.max_queued_tokens",
)
LIVE: Mapping[str, tuple[str, ...]] = {
    GATEWAY: (
        *_OF_ALL,
        *_COUNTS,
        "gateway.api_keys",
        "gateway.operator_keys",
        "gateway.tenants.*",
        "gateway.min_priority",
        "gateway.slo_class",
        "gateway.slo_classes.*",
        "gateway.policy",
        "gateway.short_prompt_tokens",
        "gateway.max_waiting",
        "gateway.max_wait_s",
        "gateway.no_replica_grace_s",
        "gateway.request_timeout_s",
        "gateway.access_log",
        "gateway.console",
        "gateway.body_timeout_s",
        "gateway.min_body_bytes_per_s",
        "gateway.max_choices",
        "gateway.tool_parser",
        "gateway.tool_schemas",
        "gateway.reasoning_parser",
        "gateway.trust_request_chat_template",
        "gateway.resume_window_s",
        "gateway.max_resumable_bytes",
        "planner.enabled",
        "planner.mode",
        "planner.idle_s",
        "planner.is_asleep",
        "planner.cold_start_s",
        "planner.nodes",
    ),
    DECODE: _OF_REPLICAS,
    PREFILL: _OF_REPLICAS,
    REGISTRY: ("log_level", *_COUNTS, "planner.*"),
}
"""Settings that take effect without a restart, by Serve deployment."""
_SET_ASIDE = "gateway.tenants.*.kv_share"
"""Not live: engines reserve blocks for tenants when they start."""


@dataclass(frozen=True, slots=True)
class Division:
    fixed: Plain
    live: Mapping[str, Plain]
    """Settings that take effect without a restart, by Serve deployment."""


@dataclass(frozen=True, slots=True)
class Change:
    """One setting that differs between two configurations."""

    path: str
    before: Any
    after: Any
    is_live: bool


def divide(config: DeploymentConfig) -> Division:
    """Divide a configuration into fixed and live settings, leaving out defaults."""
    default = dict(_leaves(_plain(DeploymentConfig())))
    own = {path: value for path, value in _leaves(_plain(config)) if default.get(path) != value}
    reserved = [name for name, tenant in config.gateway.tenants.items() if tenant.kv_share]
    kept = {("gateway", "tenants", name, "api_keys") for name in reserved}  # every tenant has it
    fixed = {path for path in own if not is_live(path) or path in kept}
    if config.prefill.replicas == 0:
        fixed.add(("prefill", "replicas"))
    return Division(
        _tree({path: own[path] for path in fixed}),
        {
            name: _tree({path: value for path, value in own.items() if _is_among(path, patterns)})
            for name, patterns in LIVE.items()
        },
    )


def with_live(config: DeploymentConfig, told: Plain) -> DeploymentConfig:
    """`config` with what a running process was `told`. Raises InvalidConfig."""
    return parse_config(merged(_plain(config), told))


def merged(below: Plain, above: Plain) -> Plain:
    """`above`, with values of `below` where it has none."""
    found = dict(below)
    for key, value in above.items():
        known = found.get(key)
        if isinstance(known, dict) and isinstance(value, dict):
            found[key] = merged(known, value)
        else:
            found[key] = value
    return found


def changes(before: DeploymentConfig, after: DeploymentConfig) -> list[Change]:
    """The settings that differ, in the order of their names."""
    old, new = dict(_leaves(_plain(before))), dict(_leaves(_plain(after)))
    found: list[Change] = []
    for path in sorted(old.keys() | new.keys()):
        one, other, name = old.get(path), new.get(path), ".".join(path)
        if one != other:
            is_pool = name in _COUNTS and 0 in (one, other)
            found.append(Change(name, one, other, is_live(path) and not is_pool))
    return found


def is_live(path: Path) -> bool:
    if fnmatchcase(".".join(path), _SET_ASIDE):
        return False
    return any(_is_among(path, patterns) for patterns in LIVE.values())


def _is_among(path: Path, patterns: tuple[str, ...]) -> bool:
    return any(fnmatchcase(".".join(path), pattern) for pattern in patterns)


def _plain(config: DeploymentConfig) -> Plain:
    """The configuration as JSON with sorted sets, so that equal configurations are equal data."""
    return msgspec.json.decode(msgspec.json.encode(config, order="sorted"), type=Plain)


def _leaves(node: Plain, above: Path = ()) -> Iterator[tuple[Path, Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*above, key))
        else:
            yield (*above, key), value


def _tree(values: Mapping[Path, Any]) -> Plain:
    root: Plain = {}
    for path in sorted(values):
        node = root
        for key in path[:-1]:
            node = node.setdefault(key, {})
        node[path[-1]] = values[path]
    return root
