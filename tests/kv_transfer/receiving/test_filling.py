"""Pieces are written off the engine's thread: what may happen to a lease meanwhile."""

from __future__ import annotations

import asyncio
import random
import threading
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

import pytest
from tests.kv_transfer.replicas import LAYOUT, TRANSFER, DecodeReplica, PrefillReplica

from baton.core.errors import CorruptPiece, TransferAborted
from baton.core.ids import TransferId, new_epoch
from baton.core.kv_pool import Holder, HolderKind
from baton.core.owner_thread import Inline
from baton.kv_transfer.handoff.lease import ReceiverState
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer
from baton.kv_transfer.handoff.reservation import Reservation
from baton.kv_transfer.layouts.integrity import unit_checksums
from baton.kv_transfer.receiving import writer
from baton.kv_transfer.receiving.fetch import FetchConfig, Fetcher
from baton.kv_transfer.receiving.filling import Fill
from baton.kv_transfer.receiving.placing import Unit, place
from baton.kv_transfer.receiving.receiver import AbortReason
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.transport.memory import MemoryTransport, Switchboard

QUICK = FetchConfig(reopen_delay_s=0.0, max_bytes_at_once=0)
"""All is written on threads, which is what is tested here."""
SENDER = new_epoch()
T = TypeVar("T")
WIDE = replace(LAYOUT, num_layers=1, num_kv_heads=8, head_dim=16)


class Counting(MemoryTransport):
    """Counts how often each piece was released."""

    def __init__(self, switchboard: Switchboard) -> None:
        super().__init__(switchboard)
        self.releases: list[int] = []

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        async with aclosing(super().open(address, request)) as pieces:
            async for piece in pieces:
                number = len(self.releases)
                self.releases.append(0)
                yield replace(piece, release=partial(self._release, number, piece))

    def _release(self, number: int, piece: KvPiece) -> None:
        self.releases[number] += 1
        piece.release()


@dataclass(frozen=True)
class Joined:
    """P, with a computed prompt, and a D that has reserved blocks for it."""

    prefill: PrefillReplica
    decode: DecodeReplica
    fetcher: Fetcher
    transport: Counting
    reservation: Reservation

    async def settle(self) -> None:
        """Nothing is left, and every piece was released once."""
        await self.fetcher.close()
        async with asyncio.timeout(60):
            while self.prefill.sender.lease_ids or self.decode.receiver.lease_ids:
                await asyncio.sleep(0.001)
        for report in (self.prefill.audit(), self.decode.audit()):
            assert report.violations == ()
            assert report.leased == report.quarantined == 0
        assert set(self.transport.releases) <= {1}


def joined(config: FetchConfig = QUICK) -> Joined:
    prefill, decode = PrefillReplica(), DecodeReplica()
    switchboard = Switchboard()
    switchboard.plug("p", Outbox(prefill.sender, Inline(), max_piece_bytes=1))
    transport = Counting(switchboard)
    prefill.grant(decode.receiver.epoch)
    prefill.compute()
    prefill.finish()
    reservation = decode.reserve(prefill.sender.epoch)
    assert reservation is not None
    fetcher = Fetcher(decode.receiver, Inline(), transport, clock=decode.clock, config=config)
    return Joined(prefill, decode, fetcher, transport, reservation)


def each_placed_by(
    monkeypatch: pytest.MonkeyPatch, place_one: Callable[[Fill], list[Unit]]
) -> None:
    def together(fills: Sequence[Fill]) -> dict[Fill, list[Unit]]:
        return {fill: bad for fill in fills if (bad := place_one(fill))}

    monkeypatch.setattr(writer, "place_together", together)


async def test_a_lease_that_ends_while_it_is_written_keeps_its_blocks_in_quarantine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    writing, may_end = threading.Event(), threading.Event()

    def slow_place(fill: Fill) -> list[Unit]:
        writing.set()
        may_end.wait(60)
        return place(fill)

    each_placed_by(monkeypatch, slow_place)
    it = joined()
    fetching = asyncio.create_task(it.fetcher.fetch(it.reservation))
    await asyncio.to_thread(writing.wait, 60)

    it.decode.receiver.expire(float("inf"))
    with pytest.raises(TransferAborted, match="its time is up"):
        await fetching

    assert it.decode.audit().quarantined == it.reservation.num_blocks
    assert it.decode.audit().violations == ()
    for_all = range(it.decode.pool.num_blocks * it.decode.layout.block_size)
    assert it.decode.pool.reserve(Holder(HolderKind.REQUEST, "other"), for_all, b"") is None
    may_end.set()
    await it.settle()


async def test_a_lease_that_ends_before_anything_is_written_gives_its_blocks_back_at_once() -> None:
    it = joined()
    filling = it.decode.receiver.filling(TRANSFER)

    it.decode.receiver.abort(TRANSFER, AbortReason.PRESSURE)

    assert it.decode.audit().free == it.decode.pool.num_blocks
    assert filling.is_released
    with pytest.raises(TransferAborted, match="given up by the receiver: blocks are needed"):
        await it.fetcher.fetch(it.reservation)
    await it.settle()


@pytest.mark.parametrize("is_at_once", [False, True])
async def test_a_writer_that_fails_aborts_the_transfer_and_releases_what_it_was_given(
    is_at_once: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing_place(fill: Fill) -> list[Unit]:
        assert is_at_once == (threading.current_thread() is threading.main_thread())
        if fill.piece.first_block == 2:
            raise MemoryError("no scratch")
        return place(fill)

    each_placed_by(monkeypatch, failing_place)
    it = joined(replace(QUICK, max_bytes_at_once=1 << 20 if is_at_once else 0))

    with pytest.raises(MemoryError):
        await it.fetcher.fetch(it.reservation)

    await it.settle()


async def test_the_first_bytes_of_a_stream_are_written_at_once_and_the_others_on_threads(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    num_at_once, threads = 3, list[threading.Thread]()

    def noting_place(fill: Fill) -> list[Unit]:
        threads.append(threading.current_thread())
        return place(fill)

    each_placed_by(monkeypatch, noting_place)
    most = num_at_once * LAYOUT.layer_block_bytes
    it = joined(replace(QUICK, max_bytes_at_once=most, max_unwritten=1))

    await it.fetcher.fetch(it.reservation)

    is_main = [thread is threading.main_thread() for thread in threads]
    assert is_main[: num_at_once + 1] == [True] * num_at_once + [False]
    assert not any(is_main[num_at_once:])
    it.decode.adopt()
    assert it.decode.holds_kv()
    await it.settle()


@pytest.mark.parametrize("max_unwritten", [1, 3])
@pytest.mark.parametrize("by_bytes", [False, True])
async def test_no_more_pieces_are_held_than_may_be_unwritten(
    max_unwritten: int, by_bytes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(QUICK, max_unwritten=max_unwritten)
    if by_bytes:
        limits = replace(QUICK, max_unwritten_bytes=max_unwritten * LAYOUT.layer_block_bytes)
    it, held = joined(limits), list[int]()

    def counting_place(fill: Fill) -> list[Unit]:
        held.append(it.transport.releases.count(0))
        return place(fill)

    each_placed_by(monkeypatch, counting_place)

    await it.fetcher.fetch(it.reservation)

    assert max(held) <= max_unwritten
    it.decode.adopt()
    assert it.decode.holds_kv()
    await it.settle()


async def test_what_is_verified_is_what_stays_though_the_sender_changes_it_under_the_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A piece may look into memory of the sender's, whose bytes were right when it was lent."""
    it = joined()

    def late_place(fill: Fill) -> list[Unit]:
        garbage = tuple(memoryview(bytes(view.nbytes)) for view in fill.piece.views)
        return place(replace(fill, piece=replace(fill.piece, views=garbage)))

    each_placed_by(monkeypatch, late_place)

    with pytest.raises(CorruptPiece, match=r"\(block, head\) .* do not match"):
        await it.fetcher.fetch(it.reservation)

    num_tries = 1 + QUICK.max_asked_again
    assert it.decode.receiver.counters.num_corrupt == {it.prefill.sender.epoch: num_tries}
    assert it.decode.receiver.counters.num_bytes == 0
    await it.settle()


async def test_the_threads_that_write_never_wait_for_the_engine(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor does the seal: an engine's thread that is busy holds up nothing."""
    it = joined()

    class Busy(Inline):
        async def interject(self, function: Callable[[], T]) -> T:
            await asyncio.sleep(3600)
            return function()

    fetcher = Fetcher(it.decode.receiver, Busy(), it.transport, clock=it.decode.clock, config=QUICK)

    async with asyncio.timeout(60):
        await fetcher.fetch(it.reservation)

    assert it.decode.receiver.state(TRANSFER) is ReceiverState.SEALED
    it.decode.adopt()
    await fetcher.close()
    await it.settle()


def test_of_a_hundred_thousand_units_every_flipped_one_is_found_and_no_other() -> None:
    chance, decode = random.Random(11), DecodeReplica(layout=WIDE, num_blocks=512)
    tokens = tuple(range(250 * WIDE.block_size))
    num_flipped = 0
    for number in range(50):
        transfer_id = TransferId(f"kv-{number}")
        assert decode.reserve(SENDER, transfer_id, tokens)
        data = chance.randbytes(250 * WIDE.layer_block_bytes)
        checksums, flipped = unit_checksums(data, WIDE.unit_bytes), bytearray(data)
        expected = sorted(chance.sample(range(2000), chance.randrange(3)))
        for unit in expected:
            at = unit * WIDE.unit_bytes + chance.randrange(WIDE.unit_bytes)
            flipped[at] ^= 1 << chance.randrange(8)
        size, view = WIDE.layer_block_bytes, memoryview(flipped)
        piece = KvPiece(
            transfer_id=transfer_id,
            sender_epoch=SENDER,
            receiver_epoch=decode.receiver.epoch,
            plane=0,
            first_block=0,
            views=tuple(view[start : start + size] for start in range(0, len(view), size)),
            checksums=checksums,
        )
        fill = decode.receiver.filling(transfer_id).begin(0, piece, 0.0)

        bad = place(fill)

        assert bad == [Unit(unit // 8, unit % 8) for unit in expected]
        num_flipped += len(expected)
        decode.receiver.filling(transfer_id).end(fill, is_written=False)
        decode.receiver.abort(transfer_id, AbortReason.FAILED)
    assert num_flipped > 20
