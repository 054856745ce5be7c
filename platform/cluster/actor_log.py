"""The log of an actor: on its standard error, and in the file that Ray Serve has for a replica."""

from __future__ import annotations

import logging

from baton.platform.config.deployment import DeploymentConfig
from baton.platform.observe.logs import set_level, start_log


def start_actor_log(config: DeploymentConfig, source: str) -> None:
    """Serve's own handlers write records with their request ids, where the dashboard, `serve` and
    `baton logs` look for them. Ranks have none: they are no replicas of Serve."""
    start_log(config.log_format, source)
    for handler in logging.getLogger("ray.serve").handlers:
        logging.getLogger().addHandler(handler)
    set_level(config.log_level)
