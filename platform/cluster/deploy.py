"""The Ray Serve application: actors that Serve starts, checks, restarts and drains.

    Gateway     binds the HTTP and gRPC ports itself; Serve's own proxies are off
    Decode      one actor a replica, each with a gRPC server of its own
    Prefill     likewise
    Registry    receives heartbeats of replicas, informs gateways; each of several is a deployment

Each actor has its own module, so that its process imports only what it needs; the driver imports
these modules, too, so they import their dependencies lazily. No request ever passes through Ray.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import ray
from ray import serve
from ray.serve.schema import LoggingConfig

from baton.platform.cluster.applications.serve_document import drain_limit_s
from baton.platform.cluster.gateway_actor import GatewayActor
from baton.platform.cluster.ranks.ranks import bundles_of, strategy_of
from baton.platform.cluster.registry.registry_actor import RegistryActor
from baton.platform.cluster.replica_actor import DecodeActor, PrefillActor
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.config.live import DECODE, GATEWAY, PREFILL, registry_names
from baton.platform.config.pools import PlacementConfig, PoolConfig
from baton.platform.security.config import SecurityConfig
from baton.platform.security.connections import is_token_given
from baton.platform.security.ray_token import settled

log = logging.getLogger(__name__)

NO_CPU: dict[str, Any] = {"num_cpus": 0}
SUCCESSORS_FIRST: dict[str, Any] = {"max_surge_percent": 100}
"""Rolling-update options of gateways: the new one listens before the old one leaves, since they can
share ports."""
HEALTH_CHECK_TIMEOUT_S = 5.0
"""Serve replaces a replica after three failed checks."""


def build_app(config: DeploymentConfig, folder: Path | None) -> serve.Application:
    """The application as a graph of deployments.

    `folder` must exist on every node; without one, every node finds the model itself. Whether
    replicas require a token is decided here for all of them.
    """
    config = _with_token_settled(config)
    if config.ignores_features:
        log.warning(
            "speculation.features is on, but nothing is kept: replicas are on several ranks, and "
            "features are those of a model on one; drafts do without what others computed"
        )
    anywhere = _placed({**NO_CPU}, PlacementConfig())
    registries = [
        _deployment(config, RegistryActor, name, 1, anywhere).bind(config, name)
        for name in registry_names(config.registry.replicas)
    ]
    pools = [
        _deployment(config, actor, name, pool.replicas, _resources(pool)).bind(
            config, folder, registries
        )
        for actor, name, pool in (
            (DecodeActor, DECODE, config.decode),
            (PrefillActor, PREFILL, config.prefill),
        )
        if pool.replicas
    ]
    faces = _placed({**NO_CPU}, config.gateway.placement) | SUCCESSORS_FIRST
    gateway = _deployment(config, GatewayActor, GATEWAY, config.gateway.replicas, faces)
    return gateway.bind(config, folder, registries, *pools)


def _with_token_settled(config: DeploymentConfig) -> DeploymentConfig:
    """`config` with the use of a token decided. The token itself is never in the configuration,
    which Ray stores and shows."""
    asked = config.security
    default = _settled_there(asked) if config.ray.address else settled(asked).default_token
    is_guarded = default != "none" or asked.is_encrypted or is_token_given(asked)
    if asked.default_token == "auto" and not is_guarded:
        log.warning(
            "Ray asks for no token here (RAY_AUTH_MODE), so that replicas ask for none either: "
            "every client that reaches their ports is served; set security.token_file"
        )
    return override(config, {"security.default_token": default})


def _settled_there(security: SecurityConfig) -> str:
    """The default token as seen on the nodes of a joined cluster."""

    def settle() -> str:
        return settled(security).default_token

    found: str = ray.get(ray.remote(num_cpus=0)(settle).remote())
    return found


def _resources(pool: PoolConfig) -> dict[str, Any]:
    """Resources and placement that Serve requests from Ray for each replica."""
    cpus, gpus = pool.resources.num_cpus, pool.resources.num_gpus
    if pool.parallel.size == 1:
        return _placed({"num_cpus": cpus, "num_gpus": gpus}, pool.placement)
    size, count = bundles_of(pool.parallel.mesh)
    options = {
        "ray_actor_options": {"num_cpus": cpus, "num_gpus": gpus},
        "placement_group_bundles": [{"CPU": cpus * size, "GPU": gpus * size}] * count,
        "placement_group_strategy": strategy_of(pool.parallel.mesh),
    }
    if pool.placement.labels:  # bundles of the placement group carry the placement
        options["placement_group_bundle_label_selector"] = [pool.placement.labels] * count
    return options


def _placed(actor: dict[str, Any], placement: PlacementConfig) -> dict[str, Any]:
    options: dict[str, Any] = {"ray_actor_options": actor}
    if placement.labels:
        actor["label_selector"] = placement.labels
    if placement.max_per_node is not None:
        options["max_replicas_per_node"] = placement.max_per_node
    return options


def _deployment(
    config: DeploymentConfig,
    actor: type,
    name: str,
    replicas: int,
    resources: dict[str, Any],
) -> serve.Deployment:
    decorate = serve.deployment(
        name=name,
        num_replicas=replicas,
        user_config={},  # live settings of a document; also used at the start
        max_ongoing_requests=1000,
        **resources,
        health_check_period_s=config.health.check_period_s,
        health_check_timeout_s=HEALTH_CHECK_TIMEOUT_S,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=drain_limit_s(config, name),
        max_constructor_retry_count=3,
        logging_config=LoggingConfig(
            enable_access_log=False, log_level="WARNING", encoding=config.log_format.upper()
        ),
    )
    return decorate(actor)
