"""Pieces between two processes that torch.distributed joined, over Gloo."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any

import pytest
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.transport.collective.pairs import (
    LOOPBACK,
    FarGpuSender,
    FarSender,
    a_joint,
    a_piece,
    nobody_knows,
    two_ends,
)
from torch import Tensor

from baton.core.errors import TransferCut, TransportFailed
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.addresses import listen
from baton.kv_transfer.transport.collective import joint as joint_module
from baton.kv_transfer.transport.collective.joint import (
    Group,
    join_as_receiver,
    join_as_sender,
)
from baton.kv_transfer.transport.collective.pair import (
    MAX_REMEMBERED,
    MAX_UNCLAIMED,
    ReceivingPair,
    SendingPair,
)
from baton.kv_transfer.transport.collective.staging import (
    Copied,
    DeviceStaging,
    HostStaging,
    gathered,
)
from baton.kv_transfer.transport.daemon import DaemonThread


@pytest.fixture
def far() -> Iterator[FarSender]:
    sender = FarSender()
    yield sender
    sender.end()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joint_module, "PATIENCE_S", 0.2)


def _bytes(data: Tensor) -> bytes:
    return data.numpy().tobytes()


async def test_a_piece_arrives_as_it_was_lent() -> None:
    async with two_ends() as it:
        blocks = os.urandom(100_000), os.urandom(100_000)

        number, size = await it.p.send(a_piece(*blocks))
        data = await it.d.expect(number, size)

        assert (number, size) == (0, 200_000)
        assert _bytes(data) == b"".join(blocks)


class Slowly(HostStaging):
    """Copies on a device, which takes its time: `gate` is its event."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def outgoing(self, piece: LentPiece) -> tuple[Tensor, Copied | None]:
        return super().outgoing(piece)[0], self.gate.wait


@pytest.mark.parametrize("is_cancelled", [False, True])
async def test_a_copy_that_is_yet_to_be_made_is_waited_for_and_holds_up_no_event_loop(
    is_cancelled: bool,
) -> None:
    async with two_ends() as it:
        staging = it.p._staging = Slowly()
        sending = asyncio.create_task(it.p.send(a_piece(b"a copy")))
        for _ in range(100):  # the loop goes on
            await asyncio.sleep(0.001)
        if is_cancelled:
            sending.cancel()
            await asyncio.sleep(0.05)
        assert not sending.done()  # its blocks are still read

        staging.gate.set()
        if is_cancelled:
            with pytest.raises(asyncio.CancelledError):
                await sending
        else:
            assert _bytes(await it.d.expect(*await sending)) == b"a copy"


def test_what_a_device_sends_is_what_was_lent() -> None:
    cache = KvCache(LAYOUT, 6)
    data = os.urandom(6 * LAYOUT.layer_block_bytes)
    cache.write_blocks(range(6), range(1, 2), memoryview(bytearray(data)))
    piece = replace(
        a_piece(*(bytes(cache.view(block, 1)[8:24]) for block in (4, 0, 5))),
        plane=1,
        blocks=(4, 0, 5),
        block_offset=8,
    )

    sent = gathered(cache.arena, piece)

    assert _bytes(sent) == b"".join(piece.views)


async def test_pieces_may_be_announced_in_any_order() -> None:
    async with two_ends() as it:
        sent = [bytes([number]) * 1000 for number in range(4)]
        for data in sent:
            await it.p.send(a_piece(data))

        claims = [it.d.expect(number, 1000) for number in (2, 0, 3, 1)]

        arrived = [_bytes(data) for data in await asyncio.gather(*claims)]
        assert arrived == [sent[number] for number in (2, 0, 3, 1)]
        assert it.asked == []


async def test_a_piece_that_is_never_announced_is_received_all_the_same() -> None:
    async with two_ends() as it:
        await it.p.send(a_piece(b"lost" * 10))  # its stream was cut
        number, size = await it.p.send(a_piece(b"next" * 20))

        data = await it.d.expect(number, size)

        assert _bytes(data) == b"next" * 20
        assert it.asked == [(0, 1)]


async def test_a_piece_that_is_not_announced_in_time_is_given_up() -> None:
    async with two_ends() as it:
        sent = [await it.p.send(a_piece(b"early"))]
        for _ in range(MAX_UNCLAIMED + 1):
            sent.append(await it.p.send(a_piece(b"early")))
            it.d.catch_up()
        await it.d.expect(*await it.p.send(a_piece(b"last")))

        with pytest.raises(TransferCut, match="piece 0 was given up"):
            await it.d.expect(*sent[0])
        assert _bytes(await it.d.expect(*sent[-1])) == b"early"


async def test_a_stream_that_ends_early_leaves_nothing_on_the_way() -> None:
    async with two_ends() as it:
        for _ in range(2 * MAX_UNCLAIMED):  # none of them is ever announced
            await it.p.send(a_piece(b"unheard of"))
            it.d.catch_up()

        data = await it.d.expect(*await it.p.send(a_piece(b"heard")))

        assert _bytes(data) == b"heard"


async def test_what_was_dropped_before_it_landed_disturbs_nothing() -> None:
    async with two_ends() as it:
        dropped = it.d.expect(*await it.p.send(a_piece(b"dropped")))
        it.d.drop(dropped)

        data = await it.d.expect(*await it.p.send(a_piece(b"wanted")))

        assert dropped.cancelled()
        assert _bytes(data) == b"wanted"


async def test_an_impossible_announcement_breaks_the_pair() -> None:
    for number, size in ((0, 0), (0, 1 << 40), (MAX_REMEMBERED + 1, 1)):
        async with two_ends() as it:
            with pytest.raises(TransportFailed, match="impossible"):
                it.d.expect(number, size)

            assert it.d.is_broken


async def test_a_piece_announced_twice_breaks_the_pair_and_leaves_nobody_waiting() -> None:
    async with two_ends() as it:
        first = it.d.expect(0, 4)  # on its way, says P

        with pytest.raises(TransportFailed, match="impossible"):
            it.d.expect(0, 4)

        with pytest.raises(TransportFailed):
            await first


async def test_an_answer_that_cannot_be_breaks_the_pair() -> None:
    async with two_ends() as it:

        async def say_nothing(first: int, stop: int | None) -> list[int]:
            return []

        it.d._inquire = say_nothing

        with pytest.raises(TransportFailed, match="piece 0 on is not known"):
            await it.d.expect(1, 1)


async def test_closing_one_end_breaks_the_other() -> None:
    async with two_ends() as it:
        waiting = it.d.expect(0, 1)

        await it.p.close("P closes")

        with pytest.raises(TransportFailed, match=r"(closed|reset) by peer"):
            await waiting
        assert it.d.is_broken


async def test_whoever_waits_hears_at_once_of_a_pair_that_is_closed() -> None:
    async with two_ends() as it:
        waiting = it.d.expect(0, 1)

        it.d.break_("D closes")

        assert isinstance(waiting.exception(), TransportFailed)


async def test_a_sender_that_is_killed_is_noticed_at_once(far: FarSender) -> None:
    pair = ReceivingPair("d", partial(join_as_receiver, far.joint), HostStaging(), nobody_knows)
    await pair.joined()
    await pair.expect(*await far.send(1000))
    waiting = pair.expect(1, 1000)

    far.end()

    with pytest.raises(TransportFailed, match=r"(closed|reset) by peer"):
        await waiting
    await pair.close("the test is over")


@pytest.mark.wide
async def test_a_sender_that_stands_still_is_given_up(far: FarSender) -> None:
    def join() -> Group:
        group = join_as_receiver(far.joint)
        gloo: Any = group.ranks
        gloo.set_timeout(timedelta(seconds=0.2))  # only now: who joins may take its time
        return group

    pair = ReceivingPair("d", join, HostStaging(), nobody_knows)
    await pair.joined()
    os.kill(far.process.pid or 0, signal.SIGSTOP)

    with pytest.raises(TransportFailed, match="Timed out"):
        await pair.expect(0, 1000)

    await pair.close("the test is over")


async def test_closing_does_not_wait_for_a_sender_that_stands_still(
    far: FarSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint_module, "PATIENCE_S", 600.0)
    pair = ReceivingPair("d", partial(join_as_receiver, far.joint), HostStaging(), nobody_knows)
    await pair.joined()
    os.kill(far.process.pid or 0, signal.SIGSTOP)
    waiting = pair.expect(0, 1000)

    async with asyncio.timeout(60):
        await pair.close("the test is over")

    assert isinstance(waiting.exception(), TransportFailed)


@pytest.mark.usefixtures("impatient")
async def test_two_that_do_not_find_each_other_are_no_pair() -> None:
    listener = listen(LOOPBACK)
    joint = a_joint(listener.getsockname()[1])
    pair = SendingPair("p", partial(join_as_sender, joint, listener), HostStaging())

    with pytest.raises(TransportFailed, match="did not find each other"):
        await pair.send(a_piece(b"x"))

    await pair.close("the test is over")


async def test_whom_nobody_listens_to_hears_of_it() -> None:
    with listen(LOOPBACK) as listener:
        joint = a_joint(listener.getsockname()[1])
    join = partial(join_as_receiver, joint)
    pair = ReceivingPair("d", join, HostStaging(), nobody_knows)

    with pytest.raises(TransportFailed, match="did not find each other"):
        await pair.joined()

    await pair.close("the test is over")


@pytest.mark.multi_gpu
async def test_a_piece_goes_from_gpu_to_gpu() -> None:
    far = FarGpuSender()
    pair = ReceivingPair(
        "d", partial(join_as_receiver, far.joint), DeviceStaging(None), nobody_knows
    )
    try:
        await pair.joined()

        data = await pair.expect(*await far.send(0))

        assert _bytes(data) == far.BLOCKS
    finally:
        await pair.close("the test is over")
        far.end()


async def test_a_daemon_thread_runs_what_came_before_it_stopped() -> None:
    thread, ran = DaemonThread("test"), list[int]()

    thread.post(partial(ran.append, 1))
    answer = thread.call(lambda: 2)
    failure = thread.call(lambda: 1 // 0)
    thread.stop()

    assert await answer == 2
    with pytest.raises(ZeroDivisionError):
        await failure
    assert ran == [1]
