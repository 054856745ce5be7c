"""The control stream: who holds a piece when, whatever either end does."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.kv_transfer.transport.control_ends import RECEIVER, PreparedSide, control_ends

from baton.core.errors import (
    EngineFailed,
    StaleEpoch,
    TransferAborted,
    TransferCut,
    TransferError,
    TransportFailed,
)
from baton.core.ids import new_epoch
from baton.kv_transfer.handoff.messages import Outcome, SettleTransfer
from baton.kv_transfer.transport.control import servicer, stream_window
from baton.kv_transfer.transport.control.client import AnnouncedPiece
from baton.kv_transfer.transport.control.ready_pieces import MAX_READY
from baton.kv_transfer.transport.control.stream_window import MAX_UNTAKEN, StreamWindow
from baton.kv_transfer.transport.control.wire import open_to_proto
from baton.kv_transfer.transport.grpc import GrpcSending
from baton.proto import kv_pb2 as pb


def number_of(announced: AnnouncedPiece) -> int:
    return int.from_bytes(announced.message.ticket, "little")


async def ending(call: Any) -> grpc.StatusCode:
    """What the stream ends with, whatever comes before."""
    with suppress(grpc.aio.AioRpcError):
        while await call.read() is not grpc.aio.EOF:
            pass
    code: grpc.StatusCode = await call.code()
    return code


async def test_every_piece_is_announced_in_order_and_given_back_once_taken() -> None:
    async with control_ends(PreparedSide(50)) as it:
        numbers = []
        async with aclosing(it.client.open(it.address, it.request, "tickets")) as pieces:
            async for announced in pieces:
                numbers.append(number_of(announced))
                announced.take()

        assert numbers == list(range(50))
        await it.side.all_back()
        assert it.side.back == list(range(50))
        assert not it.side.given_up


async def test_pieces_may_be_taken_twice_late_and_in_any_order() -> None:
    async with control_ends(PreparedSide(40)) as it:
        held: list[AnnouncedPiece] = []
        async with aclosing(it.client.open(it.address, it.request, "tickets")) as pieces:
            async for announced in pieces:
                held.append(announced)
                if len(held) == 10:
                    for piece in reversed(held):
                        piece.take()
                        piece.take()
                    held.clear()

        await it.side.all_back()
        assert it.side.back == list(range(40))


async def test_pieces_are_taken_from_other_threads() -> None:
    async with control_ends(PreparedSide(40)) as it:
        async with aclosing(it.client.open(it.address, it.request, "tickets")) as pieces:
            async for announced in pieces:
                await asyncio.to_thread(announced.take)

        await it.side.all_back()


async def test_a_receiver_that_takes_nothing_is_lent_a_bounded_number_of_pieces() -> None:
    async with control_ends(PreparedSide(100)) as it:
        pieces = it.client.open(it.address, it.request, "tickets")
        held = [await anext(pieces) for _ in range(MAX_UNTAKEN)]

        async with aclosing(it.client.open(it.address, it.request, "tickets")) as other:
            async for announced in other:  # which another stream does not feel
                announced.take()

        # Some more are ready, but not announced.
        assert it.side.num_lent - 100 in range(MAX_UNTAKEN, MAX_UNTAKEN + MAX_READY + 2)
        held[0].take()
        assert number_of(await anext(pieces)) == MAX_UNTAKEN
        await pieces.aclose()
        await it.side.all_back()


async def test_a_receiver_that_never_takes_is_cut_in_the_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_window, "MAX_UNTAKEN_S", 0.05)
    async with control_ends(PreparedSide(100)) as it:
        with pytest.raises(TransferCut, match="took nothing for"):
            async for _ in it.client.open(it.address, it.request, "tickets"):
                pass

        await it.side.all_back()


async def test_behind_the_last_piece_nobody_waits_for_the_sender_and_sealed_gives_all_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def hear_nothing(self: StreamWindow, messages: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(StreamWindow, "_take_back", hear_nothing)
    async with control_ends(PreparedSide(5)) as it, asyncio.timeout(60):
        async for announced in it.client.open(it.address, it.request, "tickets"):
            announced.take()
        sealed = SettleTransfer(
            transfer_id=it.request.transfer_id,
            sender_epoch=it.request.sender_epoch,
            receiver_epoch=RECEIVER,
            outcome=Outcome.SEALED,
        )
        for other in (replace(sealed, receiver_epoch=new_epoch()), replace(sealed, outcome=None)):
            await it.client.settle(it.address, other)
        assert it.side.back == []

        await it.client.settle(it.address, sealed)

        assert it.side.back == [0, 1, 2, 3, 4]


async def test_who_has_yet_to_take_the_last_pieces_hears_that_they_are_recalled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_window, "MAX_UNTAKEN_S", 0.05)
    async with control_ends(PreparedSide(3)) as it, asyncio.timeout(60):
        with pytest.raises(TransferCut, match="took nothing for"):
            async for _ in it.client.open(it.address, it.request, "tickets"):
                pass

        await it.side.all_back()


async def test_a_receiver_that_takes_piece_by_piece_cannot_make_a_stream_last_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_window, "PATIENCE_S", 0.1)
    async with control_ends(PreparedSide(200)) as it:
        num_taken = 0
        with pytest.raises(TransferCut, match="takes less than 4 MiB/s over the whole transfer"):
            async with aclosing(it.client.open(it.address, it.request, "tickets")) as pieces:
                async for announced in pieces:
                    await asyncio.sleep(0.005)  # far less than any one piece may take
                    announced.take()
                    num_taken += 1

        assert num_taken < 200
        await it.side.all_back()


async def test_a_receiver_that_reads_nothing_on_gives_back_what_is_ready_for_it_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_window, "PATIENCE_S", 0.1)
    monkeypatch.setattr(stream_window, "MIN_BYTES_PER_S", 1 << 40)
    side = PreparedSide(100, piece_bytes=1 << 20)
    async with control_ends(side, grpc=GrpcSending()) as it:
        call = it.raw_call()
        await call.write(it.opening("grpc"))
        await call.read()

        await it.side.all_back()

        assert it.side.num_lent < 100
        call.cancel()


async def test_the_end_waits_until_the_last_pieces_are_read() -> None:
    async with control_ends(PreparedSide(3)) as it:
        pieces = it.client.open(it.address, it.request, "tickets")
        held = [await anext(pieces) for _ in range(3)]
        ending = asyncio.ensure_future(anext(pieces, None))
        held[0].take()
        while it.side.back != [0]:
            await asyncio.sleep(0.001)
        assert not ending.done()

        held[2].take()
        held[1].take()

        assert await ending is None
        await it.side.all_back()


async def test_a_closed_stream_gives_back_what_the_receiver_still_held() -> None:
    async with control_ends(PreparedSide(30)) as it:
        pieces = it.client.open(it.address, it.request, "tickets")
        held = [await anext(pieces) for _ in range(5)]

        await pieces.aclose()

        await it.side.all_back()
        assert {*range(5)} <= {*it.side.given_up}, "who sends them may end"
        for announced in held:
            announced.take()  # too late, and harmless


async def test_a_receiver_that_leaves_while_a_piece_is_packed_leaves_nothing_behind() -> None:
    async with control_ends(PreparedSide(30)) as it:
        it.half.packing = asyncio.Event()
        opening = asyncio.ensure_future(anext(it.client.open(it.address, it.request, "tickets")))
        while not it.side.num_lent:
            await asyncio.sleep(0.001)

        opening.cancel()
        await asyncio.gather(opening, return_exceptions=True)

        await it.side.all_back()


async def test_a_sender_that_gives_up_lets_the_last_reads_end_first(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servicer, "LAST_READS_S", 60.0)
    async with control_ends(PreparedSide(2, error=TransferAborted("it was cancelled"))) as it:
        pieces = it.client.open(it.address, it.request, "tickets")
        held = [await anext(pieces) for _ in range(2)]
        ending = asyncio.ensure_future(anext(pieces))
        while it.side.num_open:
            await asyncio.sleep(0.001)
        assert it.side.back == []

        for announced in held:
            announced.take()

        with pytest.raises(TransferAborted, match="it was cancelled"):
            await ending
        await it.side.all_back()


async def test_a_sender_that_gives_up_does_not_wait_for_ever(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(servicer, "LAST_READS_S", 0.02)
    async with control_ends(PreparedSide(2, error=TransferAborted("it was cancelled"))) as it:
        with pytest.raises(TransferAborted, match="it was cancelled"):
            async for _ in it.client.open(it.address, it.request, "tickets"):
                pass

        await it.side.all_back()


async def test_an_engine_that_died_cuts_the_stream_and_the_settling() -> None:
    async with control_ends(PreparedSide(0, error=EngineFailed("out of order"))) as it:
        with pytest.raises(TransferCut, match="out of order"):
            await anext(it.client.open(it.address, it.request, "tickets"))
        with pytest.raises(TransferCut, match="out of order"):
            await it.client.settle(
                it.address,
                SettleTransfer(
                    transfer_id=it.request.transfer_id,
                    sender_epoch=it.side.epoch,
                    receiver_epoch=RECEIVER,
                    outcome=Outcome.SEALED,
                ),
            )


async def test_a_half_that_cannot_send_says_so_and_gives_the_piece_back() -> None:
    async with control_ends(PreparedSide(5)) as it:
        it.half.error = TransportFailed("the pair is broken")

        with pytest.raises(TransportFailed, match="the pair is broken"):
            await anext(it.client.open(it.address, it.request, "tickets"))

        await it.side.all_back()


async def test_an_unknown_transport_is_another_transports_chance() -> None:
    async with control_ends(PreparedSide(5)) as it:
        with pytest.raises(TransportFailed, match="not send by 'pigeon', but by tickets"):
            await anext(it.client.open(it.address, it.request, "pigeon"))
        assert it.side.num_lent == 0


async def test_a_transport_without_a_name_is_grpc() -> None:
    async with control_ends(PreparedSide(2), grpc=GrpcSending()) as it:
        pieces = [piece async for piece in it.client.open(it.address, it.request, "")]

        assert [bytes(piece.data[:1]) for piece in pieces] == [b"\0", b"\1"]
        await it.side.all_back()


garbage = pytest.mark.parametrize(
    "message",
    [
        pb.OpenMessage(),
        pb.OpenMessage(taken=pb.Taken(num_pieces=1)),
    ],
)


@garbage
async def test_a_stream_that_does_not_begin_with_open_is_refused(message: pb.OpenMessage) -> None:
    async with control_ends(PreparedSide(5)) as it:
        call = it.raw_call()
        await call.write(message)

        assert await ending(call) is grpc.StatusCode.INVALID_ARGUMENT
        assert it.side.num_lent == 0


async def test_a_stream_that_says_nothing_at_all_is_refused() -> None:
    async with control_ends(PreparedSide(5)) as it:
        call = it.raw_call()
        await call.done_writing()

        assert await ending(call) is grpc.StatusCode.INVALID_ARGUMENT


@pytest.mark.parametrize(
    "message",
    [
        pb.OpenMessage(),
        pb.OpenMessage(open=pb.OpenRequest()),
        pb.OpenMessage(taken=pb.Taken(num_pieces=1_000_000)),
    ],
)
async def test_taking_what_was_not_lent_ends_the_stream(message: pb.OpenMessage) -> None:
    async with control_ends(PreparedSide(100)) as it:
        call = it.raw_call()
        await call.write(it.opening())
        await call.read()

        await call.write(message)

        assert await ending(call) is grpc.StatusCode.INVALID_ARGUMENT
        await it.side.all_back()


async def test_a_receiver_that_stops_speaking_with_pieces_in_its_hands_is_cut() -> None:
    async with control_ends(PreparedSide(3)) as it:
        call = it.raw_call()
        await call.write(it.opening())

        await call.done_writing()

        assert await ending(call) is grpc.StatusCode.UNAVAILABLE
        await it.side.all_back()


async def test_the_last_piece_comes_with_the_end_before_whoever_prepares_them_has_ended() -> None:
    async with control_ends(PreparedSide(2, is_endless=True, tells_last=True)) as it:
        call = it.raw_call()
        opening = open_to_proto(it.request, "tickets", joins_end=True)
        await call.write(pb.OpenMessage(open=opening))
        num_pieces, is_end = 0, False
        async with asyncio.timeout(60):
            while num_pieces < 2:  # in one message, or in two
                assert not is_end
                message = pb.KvPieces.FromString(await call.read())
                num_pieces, is_end = num_pieces + len(message.pieces), message.is_end

        assert is_end
        await call.write(pb.OpenMessage(taken=pb.Taken(num_pieces=2)))
        assert await ending(call) is grpc.StatusCode.OK
        await it.side.all_back()


async def test_an_older_count_of_taken_pieces_changes_nothing() -> None:
    async with control_ends(PreparedSide(3)) as it:
        call = it.raw_call()
        await call.write(it.opening())
        num_pieces = 0
        while num_pieces < 3:  # in one message, or in several
            num_pieces += len(pb.KvPieces.FromString(await call.read()).pieces)

        for num_taken in (2, 1, 2, 3):
            await call.write(pb.OpenMessage(taken=pb.Taken(num_pieces=num_taken)))

        assert await ending(call) is grpc.StatusCode.OK
        await it.side.all_back()
        assert it.side.back == [0, 1, 2]


async def test_two_ends_meet_only_in_the_incarnation_they_mean() -> None:
    async with control_ends(PreparedSide(0)) as it:
        meet = it.client.meet
        assert await meet(it.address, "tickets", it.side.epoch, RECEIVER, b"ab") == b"ba"

        with pytest.raises(StaleEpoch, match="incarnation of the sender"):
            await meet(it.address, "tickets", new_epoch(), RECEIVER)
        with pytest.raises(TransportFailed, match="'pigeon'"):
            await meet(it.address, "pigeon", it.side.epoch, RECEIVER)
        it.half.error = TransportFailed("another host")
        with pytest.raises(TransportFailed, match="another host"):
            await meet(it.address, "tickets", it.side.epoch, RECEIVER)


async def test_a_replica_without_a_desk_for_probes_refuses_them() -> None:
    async with control_ends(PreparedSide(0)) as it:
        with pytest.raises(TransferError, match="lends nothing to measure with"):
            await it.client.offer_probe(it.address, it.side.epoch, RECEIVER, 1, 1.0)
