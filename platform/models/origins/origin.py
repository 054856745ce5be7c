"""The interface of model sources."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from baton.platform.models.listing import Listing, RemoteFile

CHUNK_BYTES = 4 << 20


class OriginUnreachable(Exception):
    """The source is not reachable now: no connection, a server that is down, a peer that left. A
    retry may help."""


class Origin(Protocol):
    """Methods raise `OriginUnreachable`, or CheckpointError for permanent failures. Called from
    several threads."""

    name: str
    """The origin as logs name it."""

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """The bytes of a file of the listing from `start` on, in pieces."""


class Place(Origin, Protocol):
    """The source of a model, which knows its files."""

    def look(self) -> Listing: ...
