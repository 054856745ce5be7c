"""A Ray cluster of our own on this machine, for as long as one process serves.

Resources are logical: as many CPUs are declared as the deployment asks for, so that a laptop of two
cores runs the same application as a cluster, and workers stand by for its actors, one a core.
"""

from __future__ import annotations

import math
import os
import secrets
from contextlib import suppress
from tempfile import NamedTemporaryFile

from baton.core.cores import usable_cores
from baton.core.home import home
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.security.ray_token import OWN_FILE

OBJECT_STORE_BYTES = 80 << 20
"""Ray's minimum is 75 MiB. No request passes through the object store."""
NUM_OTHERS = 1
"""Serve's controller."""


def draw_ray_token() -> None:
    """What Ray asks for of a cluster of its own, if it has none yet: Ray would draw it as well, and
    leave it to be read by all users of the machine. Not where it cannot be kept."""
    is_given = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if is_given or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    path = home() / OWN_FILE
    with suppress(OSError):  # one of two that begin at once is the first
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent) as file:  # readable by its owner alone
            file.write(secrets.token_hex(32))
            file.flush()
            os.link(file.name, path)  # whole, or not at all


def ray_environment() -> dict[str, str]:
    """What must be set before Ray is imported."""
    environment = {
        "RAY_worker_niceness": "0",  # Ray's default, 15, would make the engine yield to everybody
        "RAY_USAGE_STATS_ENABLED": "0",
        # Libraries with threads of their own would count the cores of the machine.
        "OMP_NUM_THREADS": str(max(1, int(usable_cores()))),
        "RAY_SERVE_LOG_TO_STDERR": "0",
        # Serve would hand its numbers on ten times a second, in each process that is called or
        # calls. Ray takes them once in ten seconds.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
        # A loaded machine may need longer than half a minute, or one, to start a process.
        "RAY_gcs_server_port_wait_time_s": "180",
        "RAY_worker_register_timeout_seconds": "180",
        "RAY_COLOR_PREFIX": "0",  # its lines may go to a file
        # A replica that fails its health checks is not asked to leave in its own time first.
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    }
    if (home() / OWN_FILE).exists():
        environment["RAY_AUTH_MODE"] = "token"  # or a cluster that was started here refuses us
    elif not os.access(home(), os.W_OK) and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        # Ray keeps its access token there; without one it needs it from here.
        environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return {key: value for key, value in environment.items() if key not in os.environ}


def joining_environment() -> dict[str, str]:
    """Ray's environment for a cluster that somebody else has started: a token, if there is one, is
    its own."""
    environment = ray_environment()
    environment.pop("RAY_AUTH_TOKEN", None)
    return environment


def worker_environment() -> dict[str, str]:
    """What must be set before a node of Ray is started, beside the above."""
    environment = {"RAY_preload_python_modules": "baton.platform.cluster.worker_imports"}
    return {key: value for key, value in environment.items() if key not in os.environ}


def num_logical_cpus(config: DeploymentConfig) -> int:
    """CPUs that are asked for, and one for each actor that asks for none.

    Ray starts workers before anything is asked of it, as many as there are CPUs and cores: these
    have their imports behind them when Serve gives them their actors.
    """
    pools = (config.prefill, config.decode)
    wanted = sum(pool.replicas * pool.parallel.size * pool.resources.num_cpus for pool in pools)
    return math.ceil(wanted) + config.gateway.replicas + config.registry.replicas + NUM_OTHERS
