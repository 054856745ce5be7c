"""Pieces between two processes that torch.distributed joined, over Gloo."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import Any, TypeGuard

import pytest
import torch
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.transport.collective.pairs import (
    LOOPBACK,
    Counting,
    FarGpuSender,
    FarSender,
    a_joint,
    a_piece,
    grants_in_vain,
    two_ends,
)
from tests.kv_transfer.transport.tcp.sharing import until
from torch import Tensor

from baton.core.errors import TransferCut, TransportFailed
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.addresses import listen
from baton.kv_transfer.transport.collective import joint as joint_module
from baton.kv_transfer.transport.collective import receiving_pair
from baton.kv_transfer.transport.collective.joint import (
    Group,
    join_as_receiver,
    join_as_sender,
)
from baton.kv_transfer.transport.collective.receiving_pair import ReceivingPair
from baton.kv_transfer.transport.collective.sending_pair import SendingPair, Wanted
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


def _is_here(arrived: Tensor | BaseException) -> TypeGuard[Tensor]:
    return isinstance(arrived, torch.Tensor)


def _bytes(data: Tensor) -> bytes:
    return data.numpy().tobytes()


async def test_a_piece_arrives_as_it_was_lent_and_goes_back_once_it_is_copied() -> None:
    async with two_ends() as it:
        data, back = os.urandom(200_000), list[int]()

        announced = it.announce(data, lambda: back.append(1))
        assert not back
        arrived = await it.expect(announced)

        assert _bytes(arrived) == data
        assert back


class Slowly(HostStaging):
    """Copies on a device, which takes its time: `gate` is its event."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = threading.Event()

    def outgoing(self, piece: LentPiece) -> tuple[Tensor, Copied | None]:
        return super().outgoing(piece)[0], self.gate.wait


async def test_a_copy_that_is_yet_to_be_made_is_waited_for_and_holds_up_no_event_loop() -> None:
    staging = Slowly()
    async with two_ends(staging) as it:
        back = list[int]()
        announced = it.announce(b"a copy", lambda: back.append(1))
        arrival = it.expect(announced)
        await until(lambda: it.granted == [[announced.number]])
        announced.lent.give_back()  # its stream has ended
        for _ in range(100):  # the loop goes on
            await asyncio.sleep(0.001)
        assert not back  # its blocks are still read

        staging.gate.set()

        assert _bytes(await arrival) == b"a copy"
        assert back


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


async def test_pieces_may_be_granted_in_any_order() -> None:
    async with two_ends() as it:
        announced = [it.announce(bytes([number]) * 1000) for number in range(4)]

        claims = [it.expect(announced[number]) for number in (2, 0, 3, 1)]

        arrived = [_bytes(data)[0] for data in await asyncio.gather(*claims)]
        assert arrived == [2, 0, 3, 1]


async def test_what_the_receiver_does_not_grant_is_not_sent_and_blocks_nobody() -> None:
    async with two_ends(counting := Counting()) as it, two_ends() as others:
        it.may_grant.clear()
        back = set[int]()
        announced = [
            it.announce(bytes([number]) * 1000, partial(back.add, number)) for number in range(8)
        ]
        claims = [it.expect(each) for each in announced]

        assert _bytes(await others.expect(others.announce(b"another pair"))) == b"another pair"
        assert counting.num_sent == 0
        announced[3].lent.give_back()  # P's lease has ended
        assert back == {3}
        claims[5].cancel()  # D's has
        it.may_grant.set()

        arrived = await asyncio.gather(*claims, return_exceptions=True)

        came = {number: _bytes(data)[0] for number, data in enumerate(arrived) if _is_here(data)}
        assert came == {number: number for number in (0, 1, 2, 4, 6, 7)}
        with pytest.raises(TransferCut, match="taken back"):
            claims[3].result()
        assert not it.d.is_broken


async def test_no_more_is_sent_than_the_receiver_has_memory_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving_pair, "MAX_GRANTED_BYTES", 4000)
    async with two_ends() as it:
        claims = [it.expect(it.announce(bytes([n]) * 1000)) for n in range(40)]

        arrived = await asyncio.gather(*claims, it.expect(it.announce(bytes(9000))))

        assert [_bytes(data)[0] for data in arrived[:40]] == list(range(40))
        *before, last = it.num_bytes_granted
        assert max(before) <= 4000
        assert last == 9000, "it comes alone"
        assert it.d.num_granted == it.d.num_bytes_granted == 0


async def test_a_piece_that_is_dropped_while_it_comes_disturbs_nothing() -> None:
    async with two_ends() as it:
        it.may_grant.clear()
        dropped = it.expect(it.announce(b"dropped"))
        await until(lambda: it.d.num_granted)
        it.d.drop(dropped)
        it.may_grant.set()

        data = await it.expect(it.announce(b"wanted"))

        assert dropped.cancelled()
        assert _bytes(data) == b"wanted"


async def test_an_impossible_announcement_breaks_the_pair_and_leaves_nobody_waiting() -> None:
    for size in (0, 1 << 40):
        async with two_ends() as it:
            it.may_grant.clear()
            waiting = it.expect(it.announce(b"on its way"))
            with pytest.raises(TransportFailed, match="impossible"):
                it.d.expect(0, b"", size)

            with pytest.raises(TransportFailed):
                await waiting


@pytest.mark.parametrize("numbers", [[7], [0, 0]])
async def test_an_answer_that_cannot_be_breaks_the_pair(numbers: list[int]) -> None:
    async with two_ends() as it:

        async def answer(num_before: int, pieces: Sequence[Wanted]) -> list[int]:
            return numbers

        it.d._grant = answer

        with pytest.raises(TransportFailed, match="an answer that cannot be"):
            await it.d.expect(1, b"", 1)


async def test_a_sender_that_never_answers_a_grant_is_given_up(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving_pair, "PATIENCE_S", 0.05)
    async with two_ends() as it:
        it.may_grant.clear()

        with pytest.raises(TransportFailed, match="no answer"):
            await it.expect(it.announce(b"on its way"))

        assert it.d.is_broken


async def test_a_grant_that_was_lost_on_its_way_breaks_the_pair() -> None:
    async with two_ends() as it:
        await it.expect(it.announce(b"first"))
        announced = it.announce(b"second")

        with pytest.raises(TransportFailed, match="1 pieces were granted, and not 2"):
            await it.p.post(2, [(announced.number, announced.secret)])

        assert it.p.is_broken


async def test_closing_one_end_breaks_the_other() -> None:
    async with two_ends() as it:
        it.d._grant = grants_in_vain
        waiting = it.d.expect(0, b"", 1)
        await asyncio.sleep(0)

        await it.p.close("P closes")

        with pytest.raises(TransportFailed, match=r"(closed|reset) by peer"):
            await waiting
        assert it.d.is_broken


async def test_whoever_waits_hears_at_once_of_a_pair_that_is_closed() -> None:
    async with two_ends() as it:
        it.may_grant.clear()
        waiting = it.expect(it.announce(b"on its way"))

        it.d.break_("D closes")

        assert isinstance(waiting.exception(), TransportFailed)


async def test_a_sender_that_is_killed_is_noticed_at_once(far: FarSender) -> None:
    pair = ReceivingPair("d", partial(join_as_receiver, far.joint), HostStaging(), far.grant)
    await pair.joined()
    await pair.expect(*await far.lend(1000))
    pair._grant = grants_in_vain
    waiting = pair.expect(1, b"", 1000)
    await asyncio.sleep(0)

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

    pair = ReceivingPair("d", join, HostStaging(), grants_in_vain)
    await pair.joined()
    os.kill(far.process.pid or 0, signal.SIGSTOP)

    with pytest.raises(TransportFailed, match="Timed out"):
        await pair.expect(0, b"", 1000)

    await pair.close("the test is over")


async def test_closing_does_not_wait_for_a_sender_that_stands_still(
    far: FarSender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(joint_module, "PATIENCE_S", 600.0)
    pair = ReceivingPair("d", partial(join_as_receiver, far.joint), HostStaging(), grants_in_vain)
    await pair.joined()
    os.kill(far.process.pid or 0, signal.SIGSTOP)
    waiting = pair.expect(0, b"", 1000)
    await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await pair.close("the test is over")

    assert isinstance(waiting.exception(), TransportFailed)


@pytest.mark.usefixtures("impatient")
async def test_two_that_do_not_find_each_other_are_no_pair() -> None:
    listener = listen(LOOPBACK)
    joint = a_joint(listener.getsockname()[1])
    join = partial(join_as_sender, joint, listener)
    pair = SendingPair("p", joint.key, join, HostStaging())

    with pytest.raises(TransportFailed, match="did not find each other"):
        await pair.post(0, [])

    await pair.close("the test is over")


async def test_whom_nobody_listens_to_hears_of_it() -> None:
    with listen(LOOPBACK) as listener:
        joint = a_joint(listener.getsockname()[1])
    join = partial(join_as_receiver, joint)
    pair = ReceivingPair("d", join, HostStaging(), grants_in_vain)

    with pytest.raises(TransportFailed, match="did not find each other"):
        await pair.joined()

    await pair.close("the test is over")


@pytest.mark.multi_gpu
async def test_a_piece_goes_from_gpu_to_gpu() -> None:
    far = FarGpuSender()
    pair = ReceivingPair("d", partial(join_as_receiver, far.joint), DeviceStaging(None), far.grant)
    try:
        await pair.joined()

        data = await pair.expect(*await far.lend(0))

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
