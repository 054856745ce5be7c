"""Finds the folders of a deployment's LoRA adapters.

adapters: {sql: org/sql-lora}  ->  {"sql": ~/.cache/baton/models/org-sql-lora-.../1a2b3c}
"""

from __future__ import annotations

from pathlib import Path

from baton.core.errors import CheckpointError
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.models.download import DownloadReport
from baton.platform.models.model_folder import find_adapter
from baton.platform.models.peers import Peers


def find_adapters(
    config: DeploymentConfig,
    *,
    report: DownloadReport | None = None,
    peers: Peers | None = None,
) -> dict[str, Path]:
    """Folders on this node by name, fetched if they must be. Raises CheckpointError, naming the
    adapter."""
    folders: dict[str, Path] = {}
    for name, where in config.adapters.items():
        try:
            folders[name] = find_adapter(where, report=report, peers=peers)
        except CheckpointError as error:
            raise type(error)(f"adapters.{name}: {error}") from error
    return folders


def with_adapters(
    config: DeploymentConfig, report: DownloadReport | None = None
) -> DeploymentConfig:
    """The configuration of processes on this machine alone, with the adapters' folders. Raises
    CheckpointError, naming the adapter."""
    folders = find_adapters(config, report=report)
    return override(config, {"adapters": {name: str(path) for name, path in folders.items()}})


def folders_here(config: DeploymentConfig) -> dict[str, Path]:
    """The adapters that are folders on this machine, by name."""
    paths = {name: Path(where).expanduser() for name, where in config.adapters.items()}
    return {name: path for name, path in paths.items() if path.is_dir()}
