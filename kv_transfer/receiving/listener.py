"""Listeners to the progress of a transfer. Each belongs to the event loop of its transfer."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Listener(Protocol):
    def listening(self) -> AbstractContextManager[None]:
        """Within it the source is awaited: one of the transfer's streams, or a piece's bytes."""

    def hear(self, num_bytes: int = 0, transport: str = "") -> None:
        """So many bytes of a piece have come by this way, which are yet to be verified; 0: it was
        announced, and its bytes are yet to come."""


class _Nobody:
    def listening(self) -> AbstractContextManager[None]:
        return nullcontext()

    def hear(self, num_bytes: int = 0, transport: str = "") -> None:
        pass


NOBODY = _Nobody()
