"""The interface of a transport: how D gets the pieces that P lends, and how P sends them.

    D: Fetcher -> Transport  ~~~ memory, gRPC, ... ~~~  SendingHalf <- SendingSide (P: Outbox)

Most transports announce their pieces on one stream (`transport/control/`), and differ in how the
bytes travel. Errors cross a transport unchanged: StaleEpoch, LayoutMismatch, UnknownTransfer and
TransferAborted when P refuses or gives up; TransferCut when P cannot be reached or the connection
breaks; TransportFailed (a kind of cut) when this transport cannot reach the peer but another may.
Nothing else is raised, except cancellation.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol, TypeAlias

from baton.core.block_views import num_bytes_of
from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer


def _nobody_sends() -> None:
    """D reads the piece by itself, or it is in its message."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LentPiece:
    """Some consecutive blocks of one plane, or of several that are alike, still in P's pool: lent
    until given back."""

    transfer_id: TransferId
    sender_epoch: Epoch
    receiver_epoch: Epoch
    plane: int
    num_planes: int = 1
    """Planes from `plane` on, each with the same blocks."""
    first_block: int
    views: Sequence[memoryview]
    """Views by plane and block: [KV heads][2][block size][head dim] as bytes."""
    blocks: tuple[int, ...]
    """Their numbers in P's pool, for a D that reads P's memory by itself."""
    checksums: bytes
    """XXH3-64 of each (plane, block, head), in the order of the views, as in `integrity`."""
    unit_bytes: int = 0
    """Bytes to which each checksum belongs, where the transport computes them as it sends; else 0
    and `checksums` holds them."""
    give_back: Callable[[], None]
    """The views will not be read again. Once, or more often; from any thread."""
    give_up: Callable[[], None] = _nobody_sends
    """D gets no more of it: a sending under way ends soon, in the middle. Before `give_back`, from
    any thread."""
    message: bytes = b""
    """The piece as it travels, with its bytes; empty: it is yet to be written. Where there is one,
    the views are good for their length only: the blocks may be others' by now."""
    is_last: bool = False
    """Whether it is known that no piece follows in its stream."""
    block_offset: int = 0
    """Where in each of the blocks its view begins, in bytes: D may hold only some of the heads."""

    @property
    def num_bytes(self) -> int:
        return num_bytes_of(self.views)


class CopiedPiece(NamedTuple):
    """A piece whose bytes were copied into the message that it travels in."""

    checksums: bytes
    message: bytes


Carry: TypeAlias = Callable[[LentPiece, int], CopiedPiece]
"""Copies a piece that has no checksums yet; told the bytes of a unit. A thread
calls it that may take its time, or the event loop for a short piece."""


class SendingSide(Protocol):
    """P, as a transport sees it."""

    def pieces(self, request: OpenTransfer) -> AsyncGenerator[LentPiece, None]:
        """Lend every piece from the first block asked for, as they are computed, then end.

        Closing it early leaves the transfer open. What is not given back by then still must be.
        """

    async def settle(self, request: SettleTransfer) -> Outcome:
        """Record the outcome, or tell it. May be repeated."""


@dataclass(frozen=True, slots=True)
class PackedPiece:
    """A lent piece as it goes out: its bytes, or a ticket that says how to get them."""

    data: Sequence[bytes | memoryview] = ()
    """End to end. They may look into the lent blocks: nobody else reads them before they left."""
    ticket: bytes = b""
    lent: LentPiece | None = None
    """The piece, if there is a ticket and the transport must know when it is given back."""


class SendingHalf(Protocol):
    """P's half of a transport whose pieces are announced on the control stream."""

    max_piece_bytes: int
    """0: as long as P likes them. What is not carried may be longer: there is less to announce."""

    @property
    def reads_in_place(self) -> bool:
        """See `OpenTransfer`: the views of what is packed may be slow to look at."""

    @property
    def carry(self) -> Carry | None:
        """Writes the message of a piece as its bytes are read; None: they do not travel so."""

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        """Pack a piece. With data it is given back at once; with a ticket when D has taken it.

        What is raised gives the piece back. Raises TransportFailed where this way is closed.
        """

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        """Answer what D's half must know first. Raises TransportFailed if they cannot meet."""

    async def close(self) -> None:
        """Nothing is packed any more. What P lends by then is given back by its streams."""


class Transport(Protocol):
    """D's side. Knows how to reach any P by its address."""

    @property
    def name(self) -> str: ...

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """Raise NoTransport where pieces may not, or cannot, come from this incarnation of P.

        Asked before P is given anything to compute. May know too little to tell, and pass.
        """

    def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        """Yield the pieces P sends. Use it under `aclosing`: closing it early ends the stream."""

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        """Tell P the outcome, or ask for it. The caller bounds the time."""

    async def close(self) -> None:
        """Let go of all connections."""
