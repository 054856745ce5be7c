"""Listeners to the progress of a transfer. Each belongs to the event loop of its transfer."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from baton.kv_transfer.handoff.messages import KvPiece


class Listener(Protocol):
    def listening(self) -> AbstractContextManager[None]:
        """Within it the source is awaited: one of the transfer's streams, or a piece's bytes."""

    def observe(self, num_bytes: int = 0, transport: str = "") -> None:
        """`num_bytes` of a piece have come by this transport, and are yet to be verified; 0: the
        piece was announced, and its bytes are yet to come."""


class _Nobody:
    def listening(self) -> AbstractContextManager[None]:
        return nullcontext()

    def observe(self, num_bytes: int = 0, transport: str = "") -> None:
        pass


NOBODY = _Nobody()


async def listened(
    pieces: AsyncGenerator[KvPiece, None], listener: Listener
) -> AsyncIterator[KvPiece]:
    """The pieces of a stream; `listener` is notified of each."""
    while True:
        with listener.listening():
            piece = await anext(pieces, None)
        if piece is None:
            return
        # Of bytes that are yet to come, its writer tells.
        listener.observe(0 if piece.executor is not None else piece.num_bytes, piece.transport)
        yield piece
