"""`baton k8s follow`: runs the adapter between pools and worker groups."""

from __future__ import annotations

import asyncio
import os
import signal
from dataclasses import dataclass
from typing import TYPE_CHECKING

from baton.core.errors import InvalidConfig
from baton.platform.observe.logs import LogFormat, start_log
from baton.platform.worker_groups.adapter import Adapter
from baton.platform.worker_groups.ray_cluster import Dashboard

if TYPE_CHECKING:
    from baton.platform.worker_groups.following import Following

PORT = 9480
"""Port of /metrics, /healthz and /readyz; if taken, the first free one of the next 16.
"""
TOKEN_VARIABLE = "RAY_AUTH_TOKEN"
TOKEN_FILE_VARIABLE = "RAY_AUTH_TOKEN_PATH"


@dataclass(frozen=True, slots=True, kw_only=True)
class FollowOptions:
    service: str
    namespace: str
    ray_url: str
    api_url: str | None
    topology_keys: tuple[str, ...]
    log_format: LogFormat


def run_follow(options: FollowOptions) -> None:
    """Raises InvalidConfig outside a pod, and without the client of Kubernetes."""
    try:
        from kubernetes.config import ConfigException

        from baton.platform.worker_groups.following import Following
        from baton.platform.worker_groups.kube_api import connect
    except ImportError as error:
        raise InvalidConfig(
            f"the Kubernetes client is not installed ({error}); pip install 'baton-llm[kubernetes]'"
        ) from error
    start_log(options.log_format, "worker-groups")
    try:
        api = connect(options.api_url, options.namespace, options.service)
    except ConfigException as error:
        raise InvalidConfig(
            f"this process is not in a pod with a service account ({error}); give the API server "
            "with --api-url, such as that of `kubectl proxy`"
        ) from error
    adapter = Adapter(api, Dashboard(options.ray_url, _token), options.topology_keys)
    asyncio.run(_until_stopped(Following(adapter, api, PORT)))


async def _until_stopped(following: Following) -> None:
    stop, loop = asyncio.Event(), asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    await following.follow(stop)


def _token() -> str:
    path = os.environ.get(TOKEN_FILE_VARIABLE)
    if path is None:
        return os.environ.get(TOKEN_VARIABLE, "")
    with open(path) as file:
        return file.read().strip()
