"""A transport with injected faults (core/chaos.py).

Nothing here knows how the transfer copes: whatever it does to pieces, a network could do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import replace

from baton.core.block_views import DeviceBlocks
from baton.core.chaos import Chaos, ChaosRule, Fault
from baton.core.clock import Clock, monotonic
from baton.core.errors import TransferCut
from baton.core.ids import Epoch
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import Transport


class ChaoticTransport:
    def __init__(self, inner: Transport, chaos: Chaos, *, clock: Clock = monotonic) -> None:
        self._inner = inner
        self._chaos = chaos
        self._clock = clock
        self._parted_until: dict[str, float] = {}
        """When each address can be reached again."""
        self._unheard_until: dict[str, float] = {}
        """When what each address sends arrives again."""

    @property
    def name(self) -> str:
        return self._inner.name

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        await self._inner.check(address, sender, receiver)

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        await self._disturb_opening(address)
        held = _Held()
        async with aclosing(self._inner.open(address, request)) as pieces:
            try:
                while (piece := await held.next(pieces)) is not None:
                    for passed in await self._pass_on(address, piece, held):
                        yield passed
            finally:
                await held.drop()

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        self._check_partition(address)
        rule = self._chaos.draw("transfer.settle")
        match rule.fault if rule else None:
            case Fault.DROP:
                raise TransferCut(f"chaos: what {address} was told got lost")
            case Fault.DUPLICATE:
                await self._inner.settle(address, request)
            case Fault.DELAY:
                assert rule is not None
                await asyncio.sleep(rule.delay_s)
        return await self._inner.settle(address, request)

    async def close(self) -> None:
        await self._inner.close()

    async def _disturb_opening(self, address: str) -> None:
        rule = self._chaos.draw("transfer.open")
        match rule.fault if rule else None:
            case Fault.CUT:
                raise TransferCut(f"chaos: {address} refused the connection")
            case Fault.PARTITION:
                assert rule is not None
                self._parted_until[address] = self._clock() + rule.delay_s
            case Fault.DELAY:
                assert rule is not None
                await asyncio.sleep(rule.delay_s)
        self._check_partition(address)

    def _check_partition(self, address: str) -> None:
        if self._parted_until.get(address, 0.0) > self._clock():
            raise TransferCut(f"chaos: {address} cannot be reached")

    async def _pass_on(self, address: str, piece: KvPiece, held: _Held) -> list[KvPiece]:
        """What comes out for one piece that came in: none, itself, or more."""
        if held.is_late(piece):
            return [piece]
        rule = self._chaos.draw("transfer.piece")
        if rule is not None and rule.fault is Fault.PARTITION:
            self._unheard_until[address] = self._clock() + rule.delay_s
        await asyncio.sleep(self._unheard_until.get(address, 0.0) - self._clock())
        if rule is not None and rule.fault is Fault.REORDER and held.piece is None:
            held.piece, held.for_s = piece, rule.delay_s
            return []
        overtaken = held.take()
        return [*await self._inject(piece, rule), *overtaken]

    async def _inject(self, piece: KvPiece, rule: ChaosRule | None) -> list[KvPiece]:
        match rule.fault if rule else None:
            case Fault.DROP:
                piece.release()
                return []
            case Fault.CUT:
                piece.release()
                raise TransferCut("chaos: the stream broke")
            case Fault.DUPLICATE:
                return [_copied(piece, await _contents(piece)), piece]
            case Fault.CORRUPT:
                return [self._flipped(piece, await _contents(piece))]
            case Fault.TRUNCATE:
                *others, last = await _contents(piece)
                return [_replaced(piece, [*others, last[:-1]])]
            case Fault.DELAY:
                assert rule is not None
                await asyncio.sleep(rule.delay_s)
        return [piece]

    def _flipped(self, piece: KvPiece, views: list[bytearray]) -> KvPiece:
        view = views[self._chaos.pick(len(views))]
        bit = self._chaos.pick(8 * len(view))
        view[bit // 8] ^= 1 << bit % 8
        return _replaced(piece, views)


class _Held:
    """A piece that the next one overtakes; or that is late, if none comes: P may wait for it."""

    def __init__(self) -> None:
        self.piece: KvPiece | None = None
        self.for_s = 0.0
        self._late: KvPiece | None = None
        self._coming: asyncio.Future[KvPiece | None] | None = None

    async def next(self, pieces: AsyncGenerator[KvPiece, None]) -> KvPiece | None:
        """The next piece that came in, or the held one; None when there are no more."""
        if self._coming is None:
            self._coming = asyncio.ensure_future(anext(pieces, None))
        if self.piece is not None:
            await asyncio.wait({self._coming}, timeout=self.for_s)
            if not self._coming.done() or self._coming.exception() or not self._coming.result():
                [self._late] = self.take()
                return self._late
        coming = await self._coming
        self._coming = None
        return coming

    def is_late(self, piece: KvPiece) -> bool:
        return piece is self._late

    def take(self) -> list[KvPiece]:
        taken, self.piece = self.piece, None
        return [] if taken is None else [taken]

    async def drop(self) -> None:
        """Give back what was not passed on."""
        for piece in self.take():
            piece.release()
        if self._coming is not None:
            self._coming.cancel()
            [last] = await asyncio.gather(self._coming, return_exceptions=True)
            if isinstance(last, KvPiece):
                last.release()


async def _contents(piece: KvPiece) -> list[bytearray]:
    """A copy of its bytes, which may have to come first, or are on a device."""
    if piece.executor is None and not isinstance(piece.views, DeviceBlocks):
        return [bytearray(view) for view in piece.views]
    return await asyncio.to_thread(lambda: [bytearray(view) for view in piece.views])


def _replaced(piece: KvPiece, views: list[bytearray]) -> KvPiece:
    """The piece with other bytes; its own are given back."""
    piece.release()
    return _copied(piece, views)


def _copied(piece: KvPiece, views: list[bytearray]) -> KvPiece:
    return replace(piece, views=tuple(map(memoryview, views)), release=lambda: None)
