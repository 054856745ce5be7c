"""A local Ray cluster for one `baton serve`.

Resources are logical: the cluster declares as many CPUs as the deployment requests, so that a
laptop with two cores runs the same application as a cluster, with one prestarted worker per core.
"""

from __future__ import annotations

import math
import os
import secrets
from contextlib import suppress
from pathlib import Path
from tempfile import NamedTemporaryFile

from baton.core.cores import usable_cores
from baton.core.errors import InvalidConfig
from baton.core.home import home
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.node import free_for
from baton.platform.security.ray_token import OWN_FILE

OBJECT_STORE_BYTES = 80 << 20
"""Ray's minimum is 75 MiB. No request passes through the object store."""
NUM_OTHERS = 1
"""Serve's controller."""
RAY_FILES_BYTES = 64 << 20
"""For the sockets and logs of Ray's processes; they grow later."""


def draw_ray_token() -> None:
    """Create Ray's token if there is none, readable by this user only; Ray itself would make it
    readable by all users. Skipped where it cannot be stored."""
    is_given = {"RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"} & os.environ.keys()
    if is_given or os.environ.get("RAY_AUTH_MODE", "token").lower() != "token":
        return
    path = home() / OWN_FILE
    with suppress(OSError):  # another process may create it at the same time
        path.parent.mkdir(mode=0o700, exist_ok=True)
        with NamedTemporaryFile("w", dir=path.parent) as file:  # readable by its owner alone
            file.write(secrets.token_hex(32))
            file.flush()
            os.link(file.name, path)  # atomic


def check_ray_folder() -> None:
    """Raises InvalidConfig where Ray cannot write its files: it would wait for its own processes
    for minutes, and for nothing."""
    base = os.environ.get("RAY_TMPDIR", os.environ.get("TMPDIR", "/tmp"))
    folder = Path(base) / "ray"
    free = free_for(folder)
    if free >= RAY_FILES_BYTES:
        return
    trouble = (
        "can be neither written nor made"
        if free < 0
        else f"has {free >> 20} MiB of disk left, and {RAY_FILES_BYTES >> 20} are needed"
    )
    raise InvalidConfig(
        f"Ray's folder {folder} {trouble}: free some of that disk, or set RAY_TMPDIR to a folder "
        "elsewhere"
    )


def ray_environment() -> dict[str, str]:
    """Environment variables to set before Ray is imported."""
    environment = {
        "RAY_worker_niceness": "0",  # Ray's default, 15, would make the engine yield to everybody
        "RAY_USAGE_STATS_ENABLED": "0",
        # A call without a connection fails. By default it would start a Ray: in a thread, say, that
        # outlives a failed start.
        "RAY_ENABLE_AUTO_CONNECT": "0",
        # Libraries with threads of their own would count the cores of the machine.
        "OMP_NUM_THREADS": str(max(1, int(usable_cores()))),
        "RAY_SERVE_LOG_TO_STDERR": "0",
        # Serve would hand its numbers on ten times a second, in each process that is called or
        # calls. Ray takes them once in ten seconds.
        "RAY_SERVE_METRICS_EXPORT_INTERVAL_MS": "5000",
        # Serve's controller would look at all its replicas ten times a second, for a fifth of all
        # that an idle deployment computes.
        "RAY_SERVE_CONTROL_LOOP_INTERVAL_S": "0.3",
        # A loaded machine may need longer than half a minute, or one, to start a process.
        "RAY_gcs_server_port_wait_time_s": "180",
        "RAY_worker_register_timeout_seconds": "180",
        "RAY_COLOR_PREFIX": "0",  # its lines may go to a file
        # A replica that fails its health checks is killed without a drain.
        "RAY_SERVE_FORCE_STOP_UNHEALTHY_REPLICAS": "1",
    }
    if (home() / OWN_FILE).exists():
        environment["RAY_AUTH_MODE"] = "token"  # or a cluster that was started here refuses us
    elif not os.access(home(), os.W_OK) and "RAY_AUTH_TOKEN_PATH" not in os.environ:
        # Ray keeps its access token in HOME; without HOME it needs the variable.
        environment["RAY_AUTH_TOKEN"] = secrets.token_hex(32)
    return {key: value for key, value in environment.items() if key not in os.environ}


def joining_environment() -> dict[str, str]:
    """Ray's environment for joining an existing cluster, which has its own token, if any."""
    environment = ray_environment()
    environment.pop("RAY_AUTH_TOKEN", None)
    return environment


def worker_environment() -> dict[str, str]:
    """Further environment variables to set before a Ray node is started."""
    environment = {"RAY_preload_python_modules": "baton.platform.cluster.worker_imports"}
    return {key: value for key, value in environment.items() if key not in os.environ}


def num_logical_cpus(config: DeploymentConfig) -> int:
    """Requested CPUs, plus one for each actor that requests none. Ray prestarts as many workers as
    there are CPUs and cores, which have done their imports when Serve assigns actors.
    """
    pools = (config.prefill, config.decode)
    wanted = sum(pool.replicas * pool.parallel.size * pool.resources.num_cpus for pool in pools)
    return math.ceil(wanted) + config.gateway.replicas + config.registry.replicas + NUM_OTHERS
