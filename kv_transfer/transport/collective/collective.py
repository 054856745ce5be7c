"""The transports through torch.distributed, point to point: Gloo for a CPU's memory, NCCL for GPUs.

    D: CollectiveTransport -- Meet: key, host ---> CollectiveSending: P      once for the two
                           <-- port --------------                           both join (joint.py)
       expect(number) <----- ticket: number, size, on the control stream --- pack: lend
            '--------------- Meet: which may be sent, in what order ------->  post: copy, send
            ^ <============= bytes, over the pair (pair.py) ================ /

A pair is made when D first opens a transfer of an incarnation of P, and again at the next opening
after it broke. A piece stays lent until D grants it; then P copies it, so its blocks are free
before it has arrived. D receives into buffers of its own, and has memory for what it grants. The
control stream's window bounds, for each transfer, what a slow reader of D's has not taken; all of
that is received, so no transfer waits for another's reader.

The bytes travel in plain text, whatever secures the control stream.
"""

from __future__ import annotations

import asyncio
import secrets
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import TypeVar

import msgspec
from torch import Tensor

from baton.core.block_views import BlockViews
from baton.core.errors import TransferCut, TransferError, TransportFailed
from baton.core.ids import Epoch
from baton.core.kv_arena import KvArena
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece
from baton.kv_transfer.transport.addresses import host_of, listen
from baton.kv_transfer.transport.collective.joint import (
    PairAddress,
    join_as_receiver,
    join_as_sender,
)
from baton.kv_transfer.transport.collective.pair import Pair
from baton.kv_transfer.transport.collective.receiving_pair import ReceivingPair
from baton.kv_transfer.transport.collective.sending_pair import SendingPair, Wanted
from baton.kv_transfer.transport.collective.staging import DeviceStaging, HostStaging, Staging
from baton.kv_transfer.transport.control.ahead import ahead
from baton.kv_transfer.transport.control.client import AnnouncedPiece, ControlClient
from baton.kv_transfer.transport.lent import SECRET_BYTES

MAX_PAIRS = 64
"""Beyond it the one that was not used for longest goes, if it is idle."""
GLOO_PIECE_BYTES = 4 << 20
"""Each piece costs both event loops, and P's copies it: others are served between two copies."""

_TICKET = struct.Struct(f"<Q{SECRET_BYTES}sQ")
"""Number, secret, size in bytes."""
_Answer = TypeVar("_Answer", bound=msgspec.Struct)
_Key = TypeVar("_Key")
_SomePair = TypeVar("_SomePair", bound=Pair)


class _JoinWithGrants(msgspec.Struct, frozen=True, tag=True):
    """Answered as soon as P listens. A peer that sends without grants cannot read it."""

    key: str
    host: str


class _Joining(msgspec.Struct, frozen=True):
    port: int


class _Granting(msgspec.Struct, frozen=True, tag=True):
    """Post these, in this order, behind the `num_before` that were granted before."""

    key: str
    num_before: int
    pieces: list[Wanted]


class _Posted(msgspec.Struct, frozen=True):
    """Pieces of them that were still lent."""

    numbers: list[int]


class CollectiveTransport:
    def __init__(self, name: str, control: ControlClient) -> None:
        self.name = name
        self._control = control
        self._staging = _staging(name, None)
        self._pairs: dict[tuple[Epoch, Epoch], ReceivingPair] = {}
        self._meetings: dict[tuple[Epoch, Epoch], asyncio.Task[ReceivingPair]] = {}

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """The first opening will tell."""

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        pair = await self._pair(address, request)
        pair.num_users += 1
        try:
            announcements = self._announcements(address, request, pair)
            async with aclosing(
                ahead(announcements, partial(_expect, pair), pair.drop)
            ) as arrivals:
                async for announced, claim in arrivals:
                    yield await _landed(pair, announced, claim)
        finally:
            pair.num_users -= 1

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._control.settle(address, request)

    async def close(self) -> None:
        for meeting in self._meetings.values():
            meeting.cancel()
        await _close(self._pairs)

    async def _announcements(
        self, address: str, request: OpenTransfer, pair: ReceivingPair
    ) -> AsyncGenerator[AnnouncedPiece, None]:
        try:
            async with aclosing(self._control.open(address, request, self.name)) as announcements:
                async for announced in announcements:
                    yield announced
        except TransferCut as error:  # P is gone, or has lost its end of the pair
            pair.break_(str(error))
            raise

    async def _pair(self, address: str, request: OpenTransfer) -> ReceivingPair:
        """The pair with that incarnation of P, formed if need be."""
        key = (request.sender_epoch, request.receiver_epoch)
        pair = self._pairs.pop(key, None)
        if pair is not None and not pair.is_broken:
            self._pairs[key] = pair  # the last used comes last
            return pair
        meeting = self._meetings.get(key)
        if meeting is None:
            meeting = asyncio.create_task(self._meet(address, *key))
            self._meetings[key] = meeting
            meeting.add_done_callback(partial(self._has_met, key))
        try:
            return await asyncio.shield(meeting)
        except asyncio.CancelledError:
            if meeting.cancelled():
                raise TransportFailed(f"{self.name}: this replica closes") from None
            raise

    def _has_met(self, key: tuple[Epoch, Epoch], meeting: asyncio.Task[ReceivingPair]) -> None:
        del self._meetings[key]
        if not meeting.cancelled():
            meeting.exception()  # its callers may have left

    async def _meet(self, address: str, sender: Epoch, receiver: Epoch) -> ReceivingPair:
        ask = partial(self._control.meet, address, self.name, sender, receiver)
        key, host = f"{sender}/{receiver}/{secrets.token_hex(16)}", host_of(address)
        answer = _read(await ask(_encode(_JoinWithGrants(key, host))), _Joining)
        joint = PairAddress(backend=self.name, key=key, host=host, port=answer.port)

        async def grant(num_before: int, pieces: Sequence[Wanted]) -> list[int]:
            granting = _Granting(key, num_before, list(pieces))
            return _read(await ask(_encode(granting)), _Posted).numbers

        name = f"{self.name} from {address}"
        staging = self._staging.of_pair()
        pair = ReceivingPair(name, partial(join_as_receiver, joint), staging, grant)
        try:
            await pair.joined()
        except BaseException:
            pair.break_("the meeting was called off")
            raise
        _keep(self._pairs, (sender, receiver), pair)
        return pair


class CollectiveSending:
    carry = None
    reads_in_place = False

    def __init__(self, name: str, arena: KvArena) -> None:
        self.max_piece_bytes = GLOO_PIECE_BYTES if name == "gloo" else 0
        self._name = name
        self._arena = arena
        self._staging: Staging | None = None
        self._pairs: dict[Epoch, SendingPair] = {}

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        loan, lent = self._pair(request.receiver_epoch).lend(piece)
        ticket = _TICKET.pack(loan.number, loan.secret, piece.num_bytes)
        return PackedPiece(ticket=ticket, lent=lent)

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        try:
            question = msgspec.msgpack.decode(payload, type=_JoinWithGrants | _Granting)
        except msgspec.DecodeError as error:
            raise TransportFailed(f"{self._name}: {error}") from error
        if isinstance(question, _Granting):
            pair = self._pair(receiver_epoch, question.key)
            return _encode(_Posted(await pair.post(question.num_before, question.pieces)))
        return await self._join(receiver_epoch, question)

    async def close(self) -> None:
        await _close(self._pairs)

    def _pair(self, receiver_epoch: Epoch, key: str = "") -> SendingPair:
        """The pair with that incarnation of D, which may say by which key it knows it."""
        pair = self._pairs.get(receiver_epoch)
        if pair is None or pair.is_broken or key not in ("", pair.key):
            raise TransportFailed(f"{self._name}: the pair is gone; meet again")
        return pair

    async def _join(self, receiver_epoch: Epoch, question: _JoinWithGrants) -> bytes:
        if self._name == "nccl" and self._arena.device == "cpu":
            raise TransportFailed("nccl: the sender's KV is not on a GPU")
        self._staging = self._staging or _staging(self._name, self._arena)
        host = question.host
        try:
            listener = await asyncio.to_thread(listen, host)
        except OSError as error:
            raise TransportFailed(f"{self._name}: cannot listen at {host!r}: {error}") from error
        port: int = listener.getsockname()[1]
        joint = PairAddress(backend=self._name, key=question.key, host=host, port=port)
        join = partial(join_as_sender, joint, listener)
        name, staging = f"{self._name} to {receiver_epoch}", self._staging.of_pair()
        pair = SendingPair(name, question.key, join, staging)
        if (former := self._pairs.pop(receiver_epoch, None)) is not None:
            former.break_("the receiver met anew")
        _keep(self._pairs, receiver_epoch, pair)
        return _encode(_Joining(port))


def _expect(pair: ReceivingPair, announced: AnnouncedPiece) -> asyncio.Future[Tensor]:
    try:
        return pair.expect(*_TICKET.unpack(announced.message.ticket))
    except struct.error as error:
        raise TransferError(f"{pair.name}: a ticket that cannot be read") from error


async def _landed(
    pair: ReceivingPair, announced: AnnouncedPiece, claim: asyncio.Future[Tensor]
) -> KvPiece:
    try:
        data = await asyncio.shield(claim)
        views = _views(data.numpy().data, announced.message.num_blocks)
    except BaseException:
        pair.drop(claim)
        raise

    def release() -> None:
        announced.take()
        pair.drop(claim)

    return replace(announced.piece(views), release=release)


def _staging(name: str, arena: KvArena | None) -> Staging:
    return DeviceStaging(arena) if name == "nccl" else HostStaging()


def _keep(pairs: dict[_Key, _SomePair], key: _Key, pair: _SomePair) -> None:
    pairs[key] = pair
    for other_key, other in list(pairs.items())[:-1]:
        if other.is_broken or (len(pairs) > MAX_PAIRS and not other.is_in_use):
            other.break_("others are used more often")
            del pairs[other_key]


async def _close(pairs: dict[_Key, _SomePair]) -> None:
    closing = [pair.close("the replica closes") for pair in pairs.values()]
    pairs.clear()
    await asyncio.gather(*closing)


def _views(data: memoryview, num_blocks: int) -> BlockViews:
    size, rest = divmod(data.nbytes, max(1, num_blocks))
    if rest or not num_blocks:
        raise TransferError(f"{num_blocks} blocks in a piece of {data.nbytes} bytes")
    return BlockViews(data.toreadonly(), range(0, data.nbytes, size), size)


def _encode(message: msgspec.Struct) -> bytes:
    return msgspec.msgpack.encode(message)


def _read(payload: bytes, kind: type[_Answer]) -> _Answer:
    try:
        return msgspec.msgpack.decode(payload, type=kind)
    except msgspec.DecodeError as error:
        raise TransportFailed(f"an answer that cannot be read: {error}") from error
