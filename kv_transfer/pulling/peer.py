"""Asking a peer for the KV that it holds: `baton.replica.v1.Peer`, both ends.

    PeerClient.source(peer) -- Pull --> PeerGrpc -> PullService (a worker: its Lender, or a move)
                            <- progress, now and then
                            <- Offered
      the transfer itself goes by any transport; the call stays open until it is settled

Cutting the call gives the loan up. Leaving the offer's context after a transfer does not cut it:
the peer ends the call once it is notified that the transfer is sealed, and that is awaited in the
background.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn, Protocol

import grpc
import grpc.aio

from baton.core.errors import (
    BatonError,
    LayoutMismatch,
    Overloaded,
    StaleEpoch,
    TransferError,
    Unavailable,
)
from baton.core.ids import Epoch, RequestId, TransferId
from baton.core.kv_layout import KvLayout
from baton.core.messages import PullOffered, PullRequest
from baton.core.owner_thread import OwnerThread
from baton.core.replicas import ReplicaAddress
from baton.kv_transfer.pulling.prefix_fetch import PrefixOffer
from baton.kv_transfer.receiving.listener import Listener
from baton.kv_transfer.receiving.source_patience import MissingKv, SourcePatience
from baton.kv_transfer.receiving.source_watch import SourceWatch
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.ending_calls import EndingCalls
from baton.proto.pull_wire import (
    offered_from_proto,
    offered_to_proto,
    pull_from_proto,
    pull_to_proto,
)
from baton.proto.replica_pb2_grpc import PeerServicer, PeerStub

PROGRESS_S = 0.25
"""How often callers that wait for an offer are told that the engine advances."""

_PROGRESS = pb.PullEvent(progress=pb.PullProgress())
_STATUS: dict[type[BatonError], grpc.StatusCode] = {
    Overloaded: grpc.StatusCode.RESOURCE_EXHAUSTED,
    LayoutMismatch: grpc.StatusCode.FAILED_PRECONDITION,
    TransferError: grpc.StatusCode.INVALID_ARGUMENT,
}
_ERROR_BY_CODE: dict[grpc.StatusCode, type[BatonError]] = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Overloaded,
    grpc.StatusCode.FAILED_PRECONDITION: LayoutMismatch,
    grpc.StatusCode.INVALID_ARGUMENT: TransferError,
    grpc.StatusCode.ABORTED: StaleEpoch,
}


class PullService(Protocol):
    """The side of a worker, of either role, that lends KV to peers."""

    def pull(self, request: PullRequest) -> AsyncGenerator[PullOffered, None]:
        """Yield the offer, then end when its transfer is over; end at once if there is none.

        Closing the iterator gives the loan up. Raises BatonError.
        """


class PeerGrpc(PeerServicer):
    def __init__(self, lends: PullService, epoch: Epoch, owner: OwnerThread) -> None:
        self._lends = lends
        self._epoch = epoch
        self._owner = owner

    async def Pull(
        self, request: pb.PullRequest, context: grpc.aio.ServicerContext[Any, Any]
    ) -> AsyncIterator[pb.PullEvent]:
        if request.sender_epoch != self._epoch:
            detail = "another incarnation of this replica was meant"
            await context.abort(grpc.StatusCode.ABORTED, detail)
        offered: PullOffered | None = None
        try:
            async with aclosing(self._lends.pull(_pull_from_proto(request))) as loan:
                async with _asked(loan) as coming:
                    yield _PROGRESS  # from now on it is missed when it does not come
                    while not await self._has_come(coming):
                        yield _PROGRESS
                if (offered := coming.result()) is not None:
                    yield pb.PullEvent(offered=offered_to_proto(offered))
                    await anext(loan, None)
        except BatonError as error:
            await _abort(context, error)
        if offered is None:
            detail = f"no more than the first {request.num_held} tokens are here"
            await context.abort(grpc.StatusCode.NOT_FOUND, detail)

    async def _has_come(self, coming: asyncio.Future[PullOffered | None]) -> bool:
        """Return when it has, or after a while in which the engine's thread has advanced."""
        await asyncio.wait((coming,), timeout=PROGRESS_S)
        if not coming.done():
            advancing = asyncio.ensure_future(self._owner.interject(_nothing))
            await asyncio.wait((coming, advancing), return_when=asyncio.FIRST_COMPLETED)
            advancing.add_done_callback(_overlook)
        return coming.done()


@dataclass(frozen=True, slots=True, kw_only=True)
class MovingRequest:
    """A request that moves from the peer to this replica."""

    request_id: RequestId
    attempt: int
    """The one that runs there, or a later one."""


class PeerClient:
    """Asks peers, on behalf of one receiver. Belongs to one event loop."""

    def __init__(
        self,
        channels: Channels,
        *,
        epoch: Epoch,
        layout: KvLayout,
        timeout_s: float,
        patience: SourcePatience,
        left: Callable[[TransferId, int, int], MissingKv] = lambda *asked: MissingKv(),
    ) -> None:
        """`left`: what has not come of a transfer that was to bring so many tokens, of which so
        many were here."""
        self.channels = channels
        self.patience = patience
        self.left = left
        self._epoch = epoch
        self._layout = layout
        self._timeout_s = timeout_s
        self.calls = EndingCalls()
        """Loans whose blocks are here."""

    def source(
        self, peer: ReplicaAddress, leaving: MovingRequest | None = None, *, tenant: str = ""
    ) -> PeerSource:
        """The peer as a source of `tenant`'s prefixes. With `leaving` that request of the peer
        stops there, whatever it has to offer."""
        return PeerSource(self, peer, leaving, tenant)

    def request(self, transfer_id: TransferId, tokens: Sequence[int], salt: bytes) -> PullRequest:
        return PullRequest(
            transfer_id=transfer_id,
            receiver_epoch=self._epoch,
            layout=self._layout,
            tokens=tuple(tokens),
            salt=salt,
            time_left_ms=int(self._timeout_s * 1e3),
        )

    async def pull(
        self, peer: ReplicaAddress, request: PullRequest, watch: SourceWatch
    ) -> AsyncGenerator[PullOffered, None]:
        """What the peer's `PullService.pull` yields. Raises BatonError."""
        stub = PeerStub(self.channels.to(peer.address))
        pulse = self.channels.pulse(peer.address)
        call = stub.Pull(pull_to_proto(request, peer.epoch), timeout=self._timeout_s)
        try:
            async for event in call:
                pulse.received()
                match event.WhichOneof("event"):
                    case "offered":
                        yield offered_from_proto(event.offered)
                    case "progress":
                        watch.progressed()
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.NOT_FOUND:
                return
            error_type = _ERROR_BY_CODE.get(error.code(), Unavailable)
            raise error_type(self.channels.explain(error)) from error
        except ValueError as error:  # a layout that this version cannot even read
            raise LayoutMismatch(str(error)) from error
        finally:
            call.cancel()


class PeerSource:
    """A `baton.kv_transfer.pulling.prefix_fetch.PrefixSource`: what one peer holds."""

    def __init__(
        self, client: PeerClient, peer: ReplicaAddress, leaving: MovingRequest | None, tenant: str
    ) -> None:
        self.name: str = peer.replica_id
        self._client = client
        self._peer = peer
        self._leaving = leaving
        self._tenant = tenant

    @asynccontextmanager
    async def offer(
        self, transfer_id: TransferId, tokens: Sequence[int], salt: bytes, num_held: int
    ) -> AsyncIterator[PrefixOffer | None]:
        """See `PrefixSource.offer`."""
        request = self._client.request(transfer_id, tokens, salt)
        request = replace(request, num_held=num_held, tenant=self._tenant)
        if self._leaving is not None:
            leaving = self._leaving
            request = replace(request, request_id=leaving.request_id, attempt=leaving.attempt)
        watch = SourceWatch(self._client.patience, self._peer)
        left = partial(self._client.left, transfer_id, len(tokens), num_held)
        loan = self._client.pull(self._peer, request, watch)
        try:
            async with self._client.channels.answering(self._peer), watch.waits():
                watch.may_be_computed(left)
                with watch.listening():
                    offered = await anext(loan, None)
                if offered is None:
                    yield None
                else:
                    watch.granted()
                    watch.is_coming(left)
                    yield _offer(offered, self._peer.address, watch)
        except BaseException:
            await loan.aclose()
            raise
        self._client.calls.let_end(loan)


def _offer(offered: PullOffered, address: str, listener: Listener) -> PrefixOffer:
    return PrefixOffer(
        sender_epoch=offered.sender_epoch,
        layout=offered.layout,
        num_tokens=offered.num_tokens,
        head_runs=offered.head_runs,
        address=address,
        listener=listener,
    )


@asynccontextmanager
async def _asked(
    loan: AsyncGenerator[PullOffered, None],
) -> AsyncIterator[asyncio.Future[PullOffered | None]]:
    """What it yields first, on its way. Where that is not wanted any more, it is not asked for."""
    coming = asyncio.ensure_future(anext(loan, None))
    try:
        yield coming
    finally:
        if not coming.done():
            coming.cancel()
        await asyncio.wait((coming,))
        _overlook(coming)


def _nothing() -> None:
    pass


def _overlook(asked: asyncio.Future[Any]) -> None:
    """A failure is reported elsewhere."""
    if not asked.cancelled():
        asked.exception()


def _pull_from_proto(message: pb.PullRequest) -> PullRequest:
    """Raises LayoutMismatch for a layout that this version cannot even read."""
    try:
        return pull_from_proto(message)
    except ValueError as error:
        raise LayoutMismatch(str(error)) from error


async def _abort(context: grpc.aio.ServicerContext[Any, Any], error: BatonError) -> NoReturn:
    """The one place where what keeps a peer from lending becomes a status."""
    for kind in type(error).__mro__:
        if kind in _STATUS:
            await context.abort(_STATUS[kind], str(error))
    await context.abort(grpc.StatusCode.UNAVAILABLE, str(error))
    raise AssertionError("abort always raises")
