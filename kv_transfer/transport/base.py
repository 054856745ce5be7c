"""What a transport is: D's way to the pieces that P publishes.

    D: Fetcher -> Transport  ~~~ memory, gRPC, ... ~~~  SendingSide (P: Outbox)

Errors cross a transport as what they are: StaleEpoch, LayoutMismatch, UnknownTransfer and
TransferAborted when P refuses or gives up, TransferCut when P cannot be reached or the connection
breaks. Nothing else is raised, but for cancellation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Protocol

from baton.kv_transfer.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer


class SendingSide(Protocol):
    """P, as a transport sees it."""

    def pieces(self, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        """Yield every piece from the first block asked for, as they are computed, then end.

        Closing it early ends its reads and leaves the transfer open.
        """

    async def settle(self, request: SettleTransfer) -> Outcome:
        """Record the outcome, or tell it. May be repeated."""


class Transport(Protocol):
    """D's side. Knows how to reach any P by its address."""

    @property
    def name(self) -> str: ...

    def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        """Yield the pieces P sends. Use it under `aclosing`: closing it early ends the stream."""

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        """Tell P the outcome, or ask for it. The caller bounds the time."""

    async def close(self) -> None:
        """Let go of all connections."""
