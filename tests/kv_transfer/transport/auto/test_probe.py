"""Probes: real blocks by real transports, bounded, verified, and gone afterwards."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager
from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import LAYOUT, PrefillReplica
from tests.kv_transfer.world import World, connected, each_transport

from baton.core.clock import ManualClock
from baton.core.errors import CorruptPiece, StaleEpoch, TransferCut, TransferError
from baton.core.ids import Epoch, new_epoch
from baton.core.owner_thread import OneThread
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import Transport
from baton.kv_transfer.transport.auto import probe
from baton.kv_transfer.transport.auto.probe import MAX_PROBE_S, ProbeOffers, Prober, ProbeRound
from baton.kv_transfer.transport.control.client import ControlClient

RECEIVER = new_epoch()


async def measure(it: World, transport: Transport | None = None, num_bytes: int = 1) -> ProbeRound:
    prober = Prober(ControlClient(it.parts.channels))
    sender = it.prefill.sender.epoch
    return await prober.measure(transport or it.transport, it.address, sender, RECEIVER, num_bytes)


@each_transport
async def test_a_probe_measures_a_transport_and_leaves_nothing(name: str) -> None:
    if name in ("memory", "auto"):
        pytest.skip("no gRPC to ask for a probe with, or probes of its own beside this one")
    async with connected(name) as it:
        found = await measure(it, num_bytes=2 * LAYOUT.block_bytes)

        assert found.num_bytes == 2 * LAYOUT.block_bytes
        assert 0 < found.latency_s < found.seconds
        await it.assert_nothing_is_left()
        assert it.prefill.sender.counters.num_sealed == 1


async def test_a_probe_of_another_incarnation_is_refused() -> None:
    async with connected("grpc") as it:
        prober = Prober(ControlClient(it.parts.channels))
        with pytest.raises(StaleEpoch):
            await prober.measure(it.transport, it.address, new_epoch(), RECEIVER, 1)

        await it.assert_nothing_is_left()


class Mute(ControlClient):
    """To a sender that hears of no outcome, and breaks no connection."""

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        await asyncio.Event().wait()
        raise AssertionError


async def test_a_sender_that_hears_of_no_outcome_does_not_hold_up_who_measures(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(probe, "SETTLE_TIMEOUT_S", 0.02)
    async with connected("grpc") as it, asyncio.timeout(60):
        prober = Prober(Mute(it.parts.channels))
        broken = Failing(it.transport, "breaks")
        sender = it.prefill.sender.epoch

        with pytest.raises(TransferCut, match="a broken wire"):
            await prober.measure(broken, it.address, sender, RECEIVER, 1)

        assert (await prober.measure(it.transport, it.address, sender, RECEIVER, 1)).seconds > 0
        await it.assert_nothing_is_left(is_p_told=False)


class Failing:
    """A transport that spoils a probe in one of several ways."""

    name = "failing"

    def __init__(self, inner: Transport, how: str) -> None:
        self._inner = inner
        self._how = how

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None: ...

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        async with aclosing(self._inner.open(address, request)) as pieces:
            async for piece in pieces:
                if self._how == "ends early":
                    piece.release()
                    return
                if self._how == "breaks":
                    piece.release()
                    raise TransferCut("a broken wire")
                views = (memoryview(bytes(piece.views[0].nbytes - 1) + b"!"), *piece.views[1:])
                yield replace(piece, views=views)

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return await self._inner.settle(address, request)

    async def close(self) -> None:
        await self._inner.close()


@pytest.mark.parametrize(
    ("how", "error"),
    [("ends early", TransferCut), ("breaks", TransferCut), ("corrupts", CorruptPiece)],
)
async def test_a_probe_that_fails_says_why_and_is_given_up_at_once(
    how: str, error: type[TransferError]
) -> None:
    async with connected("grpc") as it:
        with pytest.raises(error):
            await measure(it, Failing(it.transport, how))

        await it.assert_nothing_is_left()
        assert it.prefill.sender.counters.num_aborted == 1


@asynccontextmanager
async def desk(num_blocks: int) -> AsyncIterator[tuple[ProbeOffers, PrefillReplica, ManualClock]]:
    replica, thread, clock = PrefillReplica(num_blocks=num_blocks), OneThread(), ManualClock()
    try:
        yield ProbeOffers(replica.pool, replica.sender, thread, clock=clock), replica, clock
    finally:
        thread.stop()


async def test_probes_hold_a_bounded_share_of_the_pool() -> None:
    async with desk(64) as (offers, replica, _):
        first = await offers.offer(RECEIVER, 3 * LAYOUT.block_bytes, 1.0)
        second = await offers.offer(RECEIVER, 1 << 40, 1.0)

        assert (first.num_blocks, second.num_blocks) == (3, 1)
        with pytest.raises(TransferError, match="no blocks can be spared"):
            await offers.offer(RECEIVER, 1, 1.0)
        assert replica.audit().leased == 4
        assert replica.audit().violations == ()


async def test_a_small_pool_lends_one_block() -> None:
    async with desk(2) as (offers, _, _):
        assert (await offers.offer(RECEIVER, 1 << 40, 1.0)).num_blocks == 1


async def test_a_probe_nobody_fetches_expires() -> None:
    async with desk(64) as (offers, replica, clock):
        await offers.offer(RECEIVER, 1 << 40, 1e9)

        replica.sender.expire(clock() + MAX_PROBE_S - 1)
        assert replica.audit().leased == 4
        replica.sender.expire(clock() + MAX_PROBE_S + 1)

        assert replica.audit().leased == 0
        assert (await offers.offer(RECEIVER, 1, 1.0)).num_blocks == 1


async def test_a_full_pool_lends_nothing_and_loses_nothing() -> None:
    async with desk(6) as (offers, replica, _):
        assert replica.grant(RECEIVER)  # takes all six

        with pytest.raises(TransferError, match="no blocks can be spared"):
            await offers.offer(RECEIVER, 1, 1.0)

        assert replica.audit().violations == ()


async def test_probes_at_once_do_not_disturb_a_transfer() -> None:
    async with connected("grpc") as it:
        reservation = await it.grant()
        fetching = asyncio.create_task(it.fetch(reservation))

        await asyncio.gather(*(measure(it) for _ in range(2)))
        await it.compute()

        await fetching
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()
