"""Checks output files before a command begins its work."""

from __future__ import annotations

import os
from pathlib import Path

from baton.core.errors import InvalidConfig


def check_writable(file: Path, option: str) -> None:
    """Raises InvalidConfig if `file`, given as `option`, could not be written."""
    if file.is_dir():
        raise InvalidConfig(f"{option} {file}: this is a folder; give a file in it")
    if not file.parent.is_dir():
        raise InvalidConfig(f"{option} {file}: there is no folder {file.parent}; make it first")
    if not os.access(file if file.exists() else file.parent, os.W_OK):
        raise InvalidConfig(f"{option} {file}: it cannot be written; give another file")


def check_plots(option: str) -> None:
    """Raises InvalidConfig, naming the package to install, if plots cannot be drawn."""
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise InvalidConfig(
            f"{option} needs matplotlib; install it with `pip install 'baton-llm[plots]'`"
        ) from None
