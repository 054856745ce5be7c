"""Measures a transport between two replicas with real blocks.

    D: Prober                          P: ProbeOffers
      | --- OfferProbe(bytes) -------> |   fresh blocks, computed all at once, held by a lease
      | --- Open ... pieces, Settle -- |   as any transfer; D copies, verifies and drops them

P lends a bounded share of its pool for a bounded time, and no more when that is lent already.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass
from functools import partial
from itertools import product

from baton.core.block_views import ArrivingBlocks, DeviceBlocks
from baton.core.clock import Clock, monotonic
from baton.core.errors import CorruptPiece, TransferCut, TransferError
from baton.core.ids import Epoch, TransferId, new_transfer_id
from baton.core.kv_pool import Holder, HolderKind, KvPool
from baton.core.owner_thread import OwnerThread
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import Transport
from baton.kv_transfer.layouts.integrity import (
    checksums_of,
    checksums_on_device,
    copied_checksums,
)
from baton.kv_transfer.sending.sender import Sender
from baton.kv_transfer.transport.control.client import ControlClient, ProbeOffer

MAX_LENT_FRACTION = 1 / 16
"""Share of a pool that probes may hold together; one block they may always hold."""
MAX_PROBE_S = 10.0
SETTLE_TIMEOUT_S = 2.0
"""Seconds for P to be notified that a probe is over, also one that has taken too long: others
wait."""
MAX_IN_FLIGHT = 4
"""Pieces being copied and verified at once."""


class ProbeOffers:
    """P's side: implements `ProbeDesk` for one `Sender`."""

    def __init__(
        self,
        pool: KvPool,
        sender: Sender,
        owner: OwnerThread,
        *,
        clock: Clock = monotonic,
        may_lend: Callable[[], bool] = lambda: True,
    ) -> None:
        """`may_lend` is asked on the event loop before anything is offered."""
        self._pool = pool
        self._sender = sender
        self._owner = owner
        self._clock = clock
        self._may_lend = may_lend
        self._num_blocks: dict[TransferId, int] = {}

    async def offer(self, receiver_epoch: Epoch, num_bytes: int, time_left_s: float) -> ProbeOffer:
        """Raises TransferError while there is no room for a probe, or EngineFailed."""
        if not self._may_lend():
            raise TransferError("it is about to leave its role, and lends nothing")
        time_left_s = min(time_left_s, MAX_PROBE_S)
        offering = asyncio.ensure_future(
            self._owner.call(partial(self._offer, receiver_epoch, max(1, num_bytes), time_left_s))
        )
        try:
            return await asyncio.shield(offering)
        except asyncio.CancelledError:
            offering.add_done_callback(self._take_back)  # it is made all the same
            raise

    def _take_back(self, offering: asyncio.Future[ProbeOffer]) -> None:
        if not offering.cancelled() and not offering.exception():
            abort = partial(self._sender.abort, offering.result().transfer_id, "nobody wants it")
            self._owner.post(abort)

    def _offer(self, receiver_epoch: Epoch, num_bytes: int, time_left_s: float) -> ProbeOffer:
        """On the owner's thread: nobody sees the blocks without their lease."""
        layout, transfer_id = self._pool.layout, new_transfer_id()
        num_blocks = min(self._num_left(), -(-num_bytes // layout.block_bytes))
        source = Holder(HolderKind.LEASE, f"{transfer_id}/source")
        salt = secrets.token_bytes(16)  # found in no cache
        tokens = range(num_blocks * layout.block_size)
        while tokens and self._pool.reserve(source, tokens, salt) is None:
            num_blocks //= 2  # the pool is full, or the shares of tenants leave no more
            tokens = range(num_blocks * layout.block_size)
        if not tokens:
            raise TransferError("no blocks can be spared for a probe")
        self._sender.offer(
            transfer_id,
            receiver_epoch,
            source=source,
            num_tokens=len(tokens),
            time_left_s=time_left_s,
            now=self._clock(),
        )
        self._sender.publish(transfer_id, len(tokens))
        self._sender.finish(transfer_id)
        self._pool.release(source)
        self._num_blocks[transfer_id] = num_blocks
        return ProbeOffer(transfer_id=transfer_id, layout=layout, num_blocks=num_blocks)

    def _num_left(self) -> int:
        lent = self._sender.lease_ids
        self._num_blocks = {id_: num for id_, num in self._num_blocks.items() if id_ in lent}
        max_lent = max(1, int(self._pool.num_blocks * MAX_LENT_FRACTION))
        return max(0, max_lent - sum(self._num_blocks.values()))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeRound:
    num_bytes: int
    seconds: float
    """From the offer to the last verified byte."""
    latency_s: float
    """From the opening to the first piece."""

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / max(self.seconds, 1e-9)


class Prober:
    """D's side. Nothing of what it fetches enters a pool."""

    def __init__(self, control: ControlClient, *, clock: Clock = monotonic) -> None:
        self._control = control
        self._clock = clock

    async def measure(
        self, transport: Transport, address: str, sender: Epoch, receiver: Epoch, num_bytes: int
    ) -> ProbeRound:
        """Fetch about so many bytes. Raises TransferError or one of its kinds."""
        try:
            async with asyncio.timeout(MAX_PROBE_S):
                return await self._measure(transport, address, sender, receiver, num_bytes)
        except TimeoutError:
            raise TransferCut(f"a probe of {address} took over {MAX_PROBE_S:g} s") from None

    async def _measure(
        self, transport: Transport, address: str, sender: Epoch, receiver: Epoch, num_bytes: int
    ) -> ProbeRound:
        begun = self._clock()
        offer = await self._control.offer_probe(address, sender, receiver, num_bytes, MAX_PROBE_S)
        request = OpenTransfer(
            transfer_id=offer.transfer_id,
            sender_epoch=sender,
            receiver_epoch=receiver,
            layout=offer.layout,
            first_block=0,
        )
        outcome = Outcome.ABORTED
        try:
            opened = self._clock()
            latency_s = await self._fetch(transport, address, request, offer) - opened
            seconds, outcome = self._clock() - begun, Outcome.SEALED
        finally:
            await self._settle(address, request, outcome)
        num_bytes = offer.num_blocks * offer.layout.block_bytes
        return ProbeRound(num_bytes=num_bytes, seconds=seconds, latency_s=latency_s)

    async def _fetch(
        self, transport: Transport, address: str, request: OpenTransfer, offer: ProbeOffer
    ) -> float:
        """Copy and verify everything offered; return when the first piece came."""
        first: float | None = None
        seen: set[tuple[int, int]] = set()
        reading: deque[asyncio.Future[None]] = deque()
        try:
            async with aclosing(transport.open(address, request)) as pieces:
                async for piece in pieces:
                    first = self._clock() if first is None else first
                    blocks = range(piece.first_block, piece.first_block + piece.num_blocks)
                    seen |= set(product(piece.planes, blocks))
                    unit_bytes = offer.layout.planes[piece.plane].unit_bytes
                    reading.append(asyncio.ensure_future(_read(piece, unit_bytes)))
                    if len(reading) == MAX_IN_FLIGHT:
                        await reading.popleft()
                await asyncio.gather(*reading)
        finally:
            await asyncio.gather(*reading, return_exceptions=True)
        if first is None or len(seen) != offer.num_blocks * offer.layout.num_planes:
            raise TransferCut(f"{address} sent {len(seen)} (plane, block)s of a probe")
        return first

    async def _settle(self, address: str, request: OpenTransfer, outcome: Outcome) -> None:
        told = SettleTransfer(
            transfer_id=request.transfer_id,
            sender_epoch=request.sender_epoch,
            receiver_epoch=request.receiver_epoch,
            outcome=outcome,
        )
        with suppress(TransferError, TimeoutError):  # it expires by itself
            async with asyncio.timeout(SETTLE_TIMEOUT_S):
                await self._control.settle(address, told)


async def _read(piece: KvPiece, unit_bytes: int) -> None:
    try:
        checksums = await asyncio.to_thread(_copied_checksums, piece.views, unit_bytes)
    finally:
        piece.release()
    if checksums != piece.known_checksums:
        raise CorruptPiece("a probe arrived with other bytes than were sent")


def _copied_checksums(views: Sequence[memoryview], unit_bytes: int) -> bytes:
    if isinstance(views, ArrivingBlocks):
        return checksums_of(list(views), unit_bytes)  # they come into memory of our own
    if isinstance(views, DeviceBlocks):  # as a transfer has them verified, if it can
        found = checksums_on_device(views.rows, unit_bytes)
        if found is not None:
            return found
    sums = b""
    for view in views:
        own = memoryview(bytearray(view.nbytes))
        sums += copied_checksums((view,), (own,), unit_bytes)
    return sums
