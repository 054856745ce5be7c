"""Objects by key, each there as a whole or not: in a folder, or a bucket that fsspec can reach.

Errors are those of whichever library reaches the far side.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import fsspec

from baton.core.errors import InvalidConfig
from baton.kv_transfer.tiers.media.files import read_whole, write_whole

_MODIFIED = ("mtime", "LastModified", "last_modified", "updated", "created")
"""What fsspec's file systems call the time of the last write."""


class Objects:
    def __init__(self, url: str, folder: str) -> None:
        """In a `folder` of the URL. Raises InvalidConfig if nothing here can open that."""
        try:
            self._fs, root = fsspec.core.url_to_fs(url)
        except (ImportError, ValueError) as error:
            raise InvalidConfig(f"tiers.store.url: cannot open {url!r}: {error}") from error
        self._root = f"{str(root).rstrip('/')}/{folder}"
        protocols = self._fs.protocol
        self._is_folder = "file" in ((protocols,) if isinstance(protocols, str) else protocols)

    def path(self, key: str) -> str:
        return f"{self._root}/{key}"

    def exists(self, key: str) -> bool:
        return bool(self._fs.exists(self.path(key)))

    def read(self, key: str, max_bytes: int) -> bytes | bytearray | None:
        """All of it; of one that is longer, `max_bytes` at least. None: it is gone."""
        path = self.path(key)
        try:
            if not self._is_folder:
                data: bytes = self._fs.cat_file(path)
                return data
            with suppress(OSError):  # it may be read-only here, or somebody else's
                os.utime(path)
            return read_whole(Path(path), max_bytes)
        except FileNotFoundError:
            return None

    def write(self, key: str, parts: Sequence[bytes | memoryview]) -> None:
        path = self.path(key)
        if self._is_folder:
            os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
            write_whole(Path(path), parts, fsync=False)
        else:
            self._fs.pipe_file(path, b"".join(parts))

    def remove(self, key: str) -> None:
        with suppress(FileNotFoundError):  # another replica was first
            self._fs.rm_file(self.path(key))

    def listed(self) -> list[tuple[str, int]]:
        """Keys, which are the last two parts of their paths, and sizes; the oldest first."""
        self._fs.invalidate_cache(self._root)
        found: dict[str, dict[str, Any]] = self._fs.find(self._root, detail=True)
        by_age = sorted(found.items(), key=lambda one: _modified_at(one[1]))
        return [("/".join(path.split("/")[-2:]), int(of.get("size") or 0)) for path, of in by_age]


def _modified_at(info: dict[str, Any]) -> float:
    """Unix seconds; 0 where the file system does not say."""
    for field in _MODIFIED:
        value = info.get(field)
        if isinstance(value, datetime):
            return value.timestamp()
        if isinstance(value, int | float):
            return float(value)
    return 0.0
