"""What fsspec's file systems have in common, under whatever names."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import fsspec

from baton.core.errors import InvalidConfig

_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "created")
"""What fsspec's file systems call the time of the last write."""


def file_system(url: str) -> tuple[Any, str]:
    """Return it, and the path in it. Raises InvalidConfig for a URL that nothing here can open."""
    try:
        fs, root = fsspec.core.url_to_fs(url)
    except (ImportError, ValueError) as error:
        raise InvalidConfig(f"tiers.store.url: cannot open {url!r}: {error}") from error
    return fs, str(root)


def protocols(fs: Any) -> tuple[str, ...]:
    return (fs.protocol,) if isinstance(fs.protocol, str) else tuple(fs.protocol)


def modified_at(info: dict[str, Any]) -> float:
    """Unix seconds; 0 where the file system does not say."""
    for field in _MODIFIED:
        value = info.get(field)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
