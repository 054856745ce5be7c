"""The interface to other nodes that may have a model."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Protocol

from baton.platform.models.listing import Listing, RemoteFile
from baton.platform.models.origins.origin import Origin


class Peer(Origin, Protocol):
    """A node that has something of one version."""

    listing: Listing
    is_home: bool
    """Whether it is the node's own folder, not a copy."""

    def has(self, file: RemoteFile) -> bool:
        """Whether it has the file by now, since it may still be fetching."""

    def described(self, file: RemoteFile) -> RemoteFile:
        """`file` with a digest, which that node computes if it must."""


@dataclass(frozen=True, slots=True)
class Answers:
    having: Sequence[Peer] = ()
    is_complete: bool = True
    """Whether all peers have answered; a starting one may not have."""


class Peers(Protocol):
    def having(self, model: str, version: str, *, is_lent: bool) -> AbstractContextManager[Answers]:
        """Nodes that have the version, or if `version` is empty any. `is_lent`: the model is a
        folder of one node, which is searched for until found. They lend until the context is left.
        """


class NoPeers:
    """Peers of a single machine: none."""

    def having(self, model: str, version: str, *, is_lent: bool) -> AbstractContextManager[Answers]:
        return nullcontext(Answers())
