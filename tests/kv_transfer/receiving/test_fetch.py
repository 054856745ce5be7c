"""The asyncio shells of P and D where their order of events can be chosen."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    opening,
    settling,
)

from baton.core.block_views import ArrivingBlocks
from baton.core.errors import StaleEpoch, TransferAborted, TransferCut, Unavailable
from baton.core.ids import Epoch, ReplicaId
from baton.core.owner_thread import Inline
from baton.core.replicas import ReplicaAddress
from baton.kv_transfer.handoff.lease import ReceiverState
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.receiving import source_patience, source_watch
from baton.kv_transfer.receiving.fetch import FetchConfig, Fetcher
from baton.kv_transfer.receiving.source_patience import SourcePatience
from baton.kv_transfer.receiving.source_watch import SourceWatch
from baton.kv_transfer.sending import pieces
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.pieces import Contents, Cut, read_together
from baton.kv_transfer.transport.memory import MemoryTransport, Switchboard

QUICK = FetchConfig(reopen_delay_s=0.0)


def assert_settled(prefill: PrefillReplica, decode: DecodeReplica) -> None:
    for report in (prefill.audit(), decode.audit()):
        assert report.violations == ()
        assert report.leased == report.quarantined == 0


@pytest.mark.parametrize("num_turns", range(1, 60, 3))
async def test_a_fetch_cancelled_at_any_moment_leaves_nothing_behind(num_turns: int) -> None:
    prefill, decode = PrefillReplica(), DecodeReplica()
    switchboard = Switchboard()
    switchboard.plug("p", Outbox(prefill.sender, Inline(), max_piece_bytes=1))
    fetcher = Fetcher(
        decode.receiver, Inline(), MemoryTransport(switchboard), clock=decode.clock, config=QUICK
    )
    prefill.grant(decode.receiver.epoch)
    prefill.compute()
    prefill.finish()
    reservation = decode.reserve(prefill.sender.epoch)
    assert reservation is not None
    fetching = asyncio.create_task(fetcher.fetch(reservation))

    for _ in range(num_turns):
        await asyncio.sleep(0)
    fetching.cancel()
    await asyncio.wait({fetching})

    if not fetching.cancelled():  # it was sealed before
        decode.adopt()
        assert decode.holds_kv()
    await fetcher.close()
    async with asyncio.timeout(60):
        while prefill.sender.lease_ids:  # a copy may still be under way in its thread
            await asyncio.sleep(0.001)
    assert_settled(prefill, decode)


async def test_blocks_stay_in_quarantine_while_a_cut_streams_thread_still_reads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    summing, may_end = threading.Event(), threading.Event()

    def read_slowly(wanted: Sequence[Cut]) -> list[Contents]:
        summing.set()
        may_end.wait(60)
        return read_together(wanted)

    monkeypatch.setattr(pieces, "read_together", read_slowly)
    prefill, decode = PrefillReplica(), DecodeReplica()
    outbox = Outbox(prefill.sender, Inline(), max_bytes_at_once=0)
    prefill.grant(decode.receiver.epoch)
    prefill.compute()
    prefill.finish()

    async def first_piece() -> None:
        async with aclosing(outbox.pieces(opening(prefill, decode))) as pieces:
            await anext(pieces)

    reading = asyncio.create_task(first_piece())
    await asyncio.to_thread(summing.wait, 60)
    reading.cancel()
    await asyncio.wait({reading})
    prefill.sender.settle(settling(prefill, decode, Outcome.ABORTED))

    assert reading.cancelled()
    assert prefill.audit().quarantined == LAYOUT.num_blocks_for(22)
    may_end.set()
    async with asyncio.timeout(60):
        while prefill.sender.lease_ids:
            await asyncio.sleep(0.001)
    assert_settled(prefill, decode)


class _Readers(ThreadPoolExecutor):
    num_jobs = 0

    def submit(self, *job: Any, **options: Any) -> Future[Any]:
        self.num_jobs += 1
        return super().submit(*job, **options)


class Announcing(MemoryTransport):
    """Tells of pieces at once; their bytes come on other threads, once the gate is open."""

    def __init__(self, switchboard: Switchboard) -> None:
        super().__init__(switchboard)
        self.is_read, self.gate = threading.Event(), threading.Event()
        self.is_all_told = threading.Event()
        self.readers = _Readers(1)

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        async with aclosing(super().open(address, request)) as pieces:
            async for piece in pieces:
                read = partial(self._read, [bytes(view) for view in piece.views])
                views = ArrivingBlocks(len(piece.views), piece.views[0].nbytes, read)
                yield replace(piece, views=views, executor=self.readers, transport="tcp")
        self.is_all_told.set()

    def _read(self, blocks: Sequence[bytes], targets: Sequence[memoryview]) -> None:
        self.is_read.set()
        if not self.gate.wait(60):
            raise TransferCut("nothing came")
        data = b"".join(blocks)
        for target in targets:
            target[:], data = data[: target.nbytes], data[target.nbytes :]


@pytest.mark.parametrize("is_open", [True, False])
async def test_a_piece_is_heard_of_when_its_bytes_are_there_and_missed_when_they_do_not_come(
    monkeypatch: pytest.MonkeyPatch, is_open: bool
) -> None:
    monkeypatch.setattr(source_watch, "LOOK_S", 0.005)
    monkeypatch.setattr(source_patience, "LEAST_S", 60.0 if is_open else 0.1)
    monkeypatch.setattr(source_patience, "MOST_S", 60.0 if is_open else 0.1)
    prefill, decode = PrefillReplica(), DecodeReplica()
    switchboard = Switchboard()
    switchboard.plug("p", Outbox(prefill.sender, Inline()))
    transport = Announcing(switchboard)
    fetcher = Fetcher(decode.receiver, Inline(), transport, clock=decode.clock, config=QUICK)
    prefill.grant(decode.receiver.epoch)
    prefill.compute()
    prefill.finish()
    reservation = decode.reserve(prefill.sender.epoch)
    assert reservation is not None
    peer = ReplicaAddress(replica_id=ReplicaId("p"), epoch=prefill.sender.epoch, address="p")
    watch = SourceWatch(SourcePatience(), peer)
    watch.granted()
    watch.is_coming()

    async def fetch() -> int:
        async with asyncio.timeout(120), watch.waits():
            return (await fetcher.fetch(reservation, watch)).num_bytes

    fetching = asyncio.create_task(fetch())
    if is_open:
        assert await asyncio.to_thread(transport.is_read.wait, 120)
        assert watch._num_bytes == 0
        assert await asyncio.to_thread(transport.is_all_told.wait, 120)
        transport.gate.set()
        assert await fetching == watch._num_bytes > 0
        assert not watch._num_awaited
        assert transport.readers.num_jobs == 1  # it goes on with what was told of meanwhile
    else:
        with pytest.raises(Unavailable, match=r"p (got nowhere|sent 0\.000 MiB/s) for 0\.1 s"):
            await fetching
        transport.gate.set()
    transport.readers.shutdown()
    await fetcher.close()


class Unreliable:
    """A transport over which outcomes are lost at first, or refused."""

    name = "unreliable"

    def __init__(self, outcomes: list[type[Exception] | None]) -> None:
        self.told: list[Outcome | None] = []
        self._outcomes = outcomes

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None: ...

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        raise StaleEpoch("somebody else lives here now")
        yield

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        self.told.append(request.outcome)
        error = self._outcomes.pop(0)
        if error is not None:
            raise error("no")
        return Outcome.ABORTED

    async def close(self) -> None: ...


@pytest.mark.parametrize(
    ("outcomes", "num_told"),
    [
        ([TransferCut, TimeoutError, None], 3),
        ([TransferCut] * 3, 3),
        ([StaleEpoch], 1),
        ([None], 1),
    ],
)
async def test_an_outcome_is_told_again_only_while_nobody_hears_it(
    outcomes: list[type[Exception] | None], num_told: int
) -> None:
    decode, transport = DecodeReplica(), Unreliable(outcomes)
    fetcher = Fetcher(decode.receiver, Inline(), transport, clock=decode.clock, config=QUICK)
    reservation = decode.reserve(PrefillReplica().sender.epoch)
    assert reservation is not None

    with pytest.raises(StaleEpoch):
        await fetcher.fetch(reservation)
    await fetcher.close()

    assert transport.told == [Outcome.ABORTED] * num_told
    assert decode.receiver.lease_ids == frozenset()


async def test_a_lease_lost_before_its_fetch_is_noticed_though_nothing_arrives() -> None:
    prefill, decode = PrefillReplica(), DecodeReplica()
    switchboard = Switchboard()
    switchboard.plug("p", Outbox(prefill.sender, Inline()))
    fetcher = Fetcher(
        decode.receiver, Inline(), MemoryTransport(switchboard), clock=decode.clock, config=QUICK
    )
    prefill.grant(decode.receiver.epoch)
    reservation = decode.reserve(prefill.sender.epoch)
    assert reservation is not None
    assert decode.receiver.abort_youngest_reserved()

    with pytest.raises(TransferAborted, match="blocks are needed"):
        await asyncio.wait_for(fetcher.fetch(reservation), 60)

    await fetcher.close()
    prefill.finish()
    assert_settled(prefill, decode)


async def test_a_lease_is_sealed_and_waits_for_its_adoption() -> None:
    prefill, decode = PrefillReplica(), DecodeReplica()
    switchboard = Switchboard()
    switchboard.plug("p", Outbox(prefill.sender, Inline()))
    fetcher = Fetcher(
        decode.receiver, Inline(), MemoryTransport(switchboard), clock=decode.clock, config=QUICK
    )
    prefill.grant(decode.receiver.epoch)
    prefill.compute()
    prefill.finish()
    reservation = decode.reserve(prefill.sender.epoch)
    assert reservation is not None

    await fetcher.fetch(reservation)

    assert decode.receiver.state(TRANSFER) is ReceiverState.SEALED
    await fetcher.close()
    assert prefill.audit().leased == 0
    decode.receiver.expire(float("inf"))  # nobody came for it
    assert_settled(prefill, decode)
