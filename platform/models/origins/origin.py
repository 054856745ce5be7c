"""What a place must be able to do that models come from."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

from baton.platform.models.listing import Listing, RemoteFile

CHUNK_BYTES = 4 << 20


class OriginUnreachable(Exception):
    """The bytes do not come now: no connection, a server that is down, a peer that left. What is
    asked for again may come."""


class Origin(Protocol):
    """Its methods raise `OriginUnreachable`, and CheckpointError for what will not come however
    often it is asked for. Called from several threads."""

    name: str
    """The origin as logs name it."""

    def read(self, file: RemoteFile, start: int) -> Iterator[bytes]:
        """The bytes of a file of the listing from `start` on, in pieces."""


class Place(Origin, Protocol):
    """Where a model is at home: it knows what there is."""

    def look(self) -> Listing: ...
