"""The log of an actor: on its standard error, and in Ray Serve's log file of the replica."""

from __future__ import annotations

import logging

from baton.platform.config.deployment import DeploymentConfig
from baton.platform.observe.logs import set_level, start_log


def start_actor_log(config: DeploymentConfig, source: str) -> None:
    """Records also go to Serve's handlers, so that the dashboard, `serve` and `baton logs` find
    them. Ranks have no such handlers, since they are no Serve replicas."""
    start_log(config.log_format, source)
    for handler in logging.getLogger("ray.serve").handlers:
        logging.getLogger().addHandler(handler)
    set_level(config.log_level)
