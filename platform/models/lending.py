"""Lends files of one version of a model to other nodes.

Only files of the model are read, whatever name is requested.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from baton.core.errors import CheckpointError
from baton.platform.models.digest import digest_of
from baton.platform.models.hub import HubModel, cached_snapshot, snapshot_listing
from baton.platform.models.listing import (
    ADAPTER_CONFIG,
    CONFIG,
    Listing,
    RemoteFile,
    files_in,
    list_files,
)
from baton.platform.models.model_folder import place_of
from baton.platform.models.node_cache import CachedRepository, size_of


class LentModel(msgspec.Struct, frozen=True):
    listing: Listing
    is_home: bool
    """Whether the model is a folder of this node, so that the listing is current. Else it is a
    copy, and may be outdated."""


class Lender:
    def __init__(self, model: str, version: str) -> None:
        """`version`: empty for what is here."""
        self._found = _find(model, version)

    def lent(self) -> bytes:
        """The listing as JSON; empty if the model is not here."""
        return b"" if self._found is None else msgspec.json.encode(self._found[0])

    def has(self, name: str) -> bool:
        file, path = self._file(name)
        return size_of(path) == file.size

    def digest(self, name: str) -> str:
        file, path = self._file(name)
        return file.digest or digest_of(path)

    def read(self, name: str, start: int, num_bytes: int) -> bytes:
        _, path = self._file(name)
        with path.open("rb") as file:
            file.seek(start)
            return file.read(num_bytes)

    def _file(self, name: str) -> tuple[RemoteFile, Path]:
        assert self._found is not None, "nothing is asked of who has nothing"
        lent, folder = self._found
        for file in lent.listing.files:
            if file.name == name:
                return file, folder / name
        raise CheckpointError(f"{lent.listing.model} has no file {name!r}")


def _find(model: str, version: str) -> tuple[LentModel, Path] | None:
    folder = Path(model).expanduser()
    if any((folder / name).is_file() for name in (CONFIG, ADAPTER_CONFIG)):
        listing = _listed(model, folder)
        return (
            (LentModel(listing, is_home=True), folder) if version in ("", listing.version) else None
        )
    place, revision = place_of(model)
    cached = CachedRepository.of(place)
    found = cached.known(version) if version else cached.current(revision)
    if found is not None:
        return LentModel(found, is_home=False), cached.version(found)
    if place.startswith("hf://"):
        hub = HubModel(HubModel.parse(model).repo, version or revision)
        for is_adapter in (False, True):
            snapshot = cached_snapshot(hub, None, wants_weights=True, is_adapter=is_adapter)
            if snapshot is not None:
                return LentModel(snapshot_listing(hub, snapshot), is_home=False), snapshot
    return None


def _listed(model: str, folder: Path) -> Listing:
    files = []
    for name, path in files_in(folder):
        status = path.stat()
        files.append(RemoteFile(name, status.st_size, etag=str(status.st_mtime_ns)))
    return list_files(model, files, is_trusted=True)
