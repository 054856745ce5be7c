"""Other nodes that may have a model: who asks them does not know how they are reached."""

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
    """Whether that is a folder of its own, not what it took from somewhere."""

    def has(self, file: RemoteFile) -> bool:
        """Whether it has it by now: it may still be fetching itself."""

    def described(self, file: RemoteFile) -> RemoteFile:
        """`file` with a digest, which that node computes if it must."""


@dataclass(frozen=True, slots=True)
class Answers:
    having: Sequence[Peer] = ()
    is_complete: bool = True
    """Whether all that were asked have answered: one that starts itself may not have come to it."""


class Peers(Protocol):
    def having(self, model: str, version: str, *, is_lent: bool) -> AbstractContextManager[Answers]:
        """Nodes that have something of it, or of what they took for it last if `version` is empty.

        `is_lent`: it is a folder of one of them, which is looked for until it is found. They lend
        until the context is left.
        """


class NoPeers:
    """A machine of its own."""

    def having(self, model: str, version: str, *, is_lent: bool) -> AbstractContextManager[Answers]:
        return nullcontext(Answers())
