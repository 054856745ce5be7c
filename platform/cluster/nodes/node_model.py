"""Finds or fetches the model on this node, and reports the progress.

fetching the model 42%            by one process of the node
waiting for the model             while another process of the node fetches it
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

import ray

from baton.core.replicas import Role
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.replica.assignment import Assignment

if TYPE_CHECKING:
    from baton.platform.models.download import DownloadReport
    from baton.platform.replica.startup import Startup

T = TypeVar("T")


class FetchStages:
    """A `DownloadReport` that updates a replica's startup. Called from another thread."""

    def __init__(self, startup: Startup) -> None:
        self._startup = startup
        self._loop = asyncio.get_running_loop()
        self._lock = Lock()
        self._total = self._done = 0

    def begin(self, file: str, num_bytes: int) -> None:
        with self._lock:
            if not self._total:
                self._soon(self._startup.enter, "fetching the model")
            self._total += num_bytes

    def advance(self, file: str, num_bytes: int) -> None:
        with self._lock:
            self._done += num_bytes
            self._soon(self._startup.advance, self._done / max(1, self._total))

    def wait(self) -> None:
        stage = "waiting for the model, which another process of this node fetches"
        self._soon(self._startup.enter, stage)

    def _soon(self, tell: Callable[[T], None], what: T) -> None:
        """Call `tell` in the loop's thread, in order."""
        self._loop.call_soon_threadsafe(tell, what)


async def find_on_node(
    config: DeploymentConfig, report: DownloadReport | None = None, *, wants_weights: bool
) -> Path:
    """Raises CheckpointError."""
    from baton.platform.cluster.nodes.model_peers import peers_of
    from baton.platform.models.model_folder import find_model

    return await asyncio.to_thread(
        find_model, config.model, wants_weights=wants_weights, report=report, peers=peers_of(config)
    )


async def model_here(
    config: DeploymentConfig, role: Role, report: DownloadReport | None = None
) -> tuple[DeploymentConfig, Path]:
    """The model's folder, and the configuration with the draft model's folder. Raises
    CheckpointError, and InvalidConfig if the two do not fit."""
    from baton.platform.models.draft_folder import with_draft

    weights = config.wants_weights
    folder = await find_on_node(config, report, wants_weights=weights)
    if role is Role.DECODE or config.engine(role).keeps_features_for is not None:
        from baton.platform.cluster.nodes.model_peers import peers_of

        config = await asyncio.to_thread(
            with_draft, config, folder, wants_weights=weights, report=report, peers=peers_of(config)
        )
    return config, folder


async def adapters_here(
    config: DeploymentConfig, report: DownloadReport | None = None
) -> Mapping[str, Path]:
    """Folders of the adapters by name. Raises CheckpointError."""
    if not config.adapters:
        return {}
    from baton.platform.cluster.nodes.model_peers import peers_of
    from baton.platform.models.adapter_folders import find_adapters

    return await asyncio.to_thread(find_adapters, config, report=report, peers=peers_of(config))


def own_node() -> str:
    return str(ray.get_runtime_context().get_node_id())


async def assigned_here(assignment: Assignment, startup: Startup | None = None) -> Assignment:
    """The assignment with this node's folders, since the first rank may be on another node.
    Raises as `model_here`."""
    if assignment.node in ("", own_node()):
        return assignment
    asked = override(assignment.config, {"decode.speculation.model": assignment.draft})
    report = None if startup is None else FetchStages(startup)
    config, folder = await model_here(asked, assignment.role, report)
    adapters = await adapters_here(config, report)
    return replace(assignment, config=config, folder=folder, node=own_node(), adapters=adapters)
