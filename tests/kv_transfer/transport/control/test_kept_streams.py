"""A control stream that carries one transfer after the other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import grpc
import pytest
from tests.kv_transfer.transport.control_ends import ControlEnds, PreparedSide, control_ends

from baton.core.errors import StaleEpoch
from baton.core.ids import TransferId
from baton.kv_transfer.transport.control import servicer, streams
from baton.kv_transfer.transport.control.servicer import KvTransferServicer
from baton.kv_transfer.transport.control.stream_window import StreamWindow
from baton.kv_transfer.transport.control.wire import THE_END_OF_THIS, open_to_proto
from baton.proto import kv_pb2 as pb


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[asyncio.Event]:
    """One for each call of `Open` that P has seen: set when P has done with it."""
    calls: list[asyncio.Event] = []
    serve: Any = KvTransferServicer.Open

    async def counting(
        self: KvTransferServicer, messages: AsyncIterator[pb.OpenMessage], context: Any
    ) -> AsyncIterator[bytes]:
        calls.append(ended := asyncio.Event())
        try:
            async with aclosing(serve(self, messages, context)) as served:
                async for message in served:
                    yield message
        finally:
            ended.set()

    monkeypatch.setattr(KvTransferServicer, "Open", counting)
    return calls


async def transfer(it: ControlEnds, name: str) -> int:
    """The number of pieces that came. Returns when the stream is free for another transfer."""
    request, num_pieces = replace(it.request, transfer_id=TransferId(name)), 0
    async with aclosing(it.client.open(it.address, request, "tickets")) as pieces:
        async for announced in pieces:
            assert announced.message.transfer_id == name
            announced.take()
            num_pieces += 1
    async with asyncio.timeout(60):
        while not it.client.num_idle_streams:
            await asyncio.sleep(0.001)
    return num_pieces


async def test_transfers_that_follow_each_other_share_a_stream(begun: list[asyncio.Event]) -> None:
    async with control_ends(PreparedSide(40)) as it:
        assert [await transfer(it, f"kv-{number}") for number in range(3)] == [40] * 3

        await it.side.all_back()
        assert len(begun) == 1
        assert it.side.num_lent == 120


async def test_transfers_at_once_have_a_stream_each(begun: list[asyncio.Event]) -> None:
    async with control_ends(PreparedSide(5)) as it:
        held = it.client.open(it.address, it.request, "tickets")
        await anext(held)

        assert await transfer(it, "kv-2") == 5

        await held.aclose()
        await it.side.all_back()
        assert len(begun) == 2


async def test_a_stream_that_ended_while_it_was_idle_is_replaced_unseen(
    begun: list[asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def leave(self: StreamWindow) -> None:
        """P waits for nothing more."""

    monkeypatch.setattr(StreamWindow, "next_opening", leave)
    monkeypatch.setattr(streams.ControlStream, "is_quiet", True)  # D has yet to hear of it
    async with control_ends(PreparedSide(5)) as it:
        assert [await transfer(it, f"kv-{number}") for number in range(2)] == [5, 5]

        assert len(begun) == 2


async def test_what_the_sender_refuses_on_a_kept_stream_is_told_as_on_a_new_one(
    begun: list[asyncio.Event],
) -> None:
    async with control_ends(PreparedSide(5)) as it:
        await transfer(it, "kv-1")
        it.side.error, it.side.num_pieces = StaleEpoch("an earlier incarnation"), 0

        with pytest.raises(StaleEpoch, match="an earlier incarnation"):
            await transfer(it, "kv-2")

        assert len(begun) == 1
        assert it.client.num_idle_streams == 0


async def test_a_stream_is_not_kept_for_long(
    begun: list[asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(streams, "IDLE_S", 0.01)
    async with control_ends(PreparedSide(5)) as it, asyncio.timeout(60):
        async for announced in it.client.open(it.address, it.request, "tickets"):
            announced.take()

        await begun[0].wait()
        assert it.client.num_idle_streams == 0


async def test_a_sender_that_leaves_waits_for_no_idle_stream_and_keeps_none(
    begun: list[asyncio.Event],
) -> None:
    async with control_ends(PreparedSide(5)) as it, asyncio.timeout(60):
        held = it.client.open(it.address, it.request, "tickets")
        pieces = [await anext(held)]
        await transfer(it, "kv-2")

        it.servicer.leave()
        stopping = asyncio.create_task(it.server.stop(3600))
        await begun[1].wait()
        assert not stopping.done()
        while len(pieces) < 5:
            pieces.append(await anext(held))
        for announced in pieces:
            announced.take()

        assert await anext(held, None) is None
        await stopping
        await it.side.all_back()


async def test_an_old_stream_is_not_kept(
    begun: list[asyncio.Event], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(servicer, "MAX_AGE_S", 0.0)
    async with control_ends(PreparedSide(5)) as it, asyncio.timeout(60):
        for _ in range(2):
            async for announced in it.client.open(it.address, it.request, "tickets"):
                announced.take()

        assert len(begun) == 2
        await it.side.all_back()


@pytest.mark.parametrize("num_taken", [0, 4])
async def test_who_opens_the_next_with_pieces_in_its_hands_is_refused(num_taken: int) -> None:
    async with control_ends(PreparedSide(5)) as it:
        call, opening = it.raw_call(), open_to_proto(it.request, "tickets", keeps_stream=True)
        await call.write(pb.OpenMessage(open=opening))
        while await call.read() != THE_END_OF_THIS:
            pass
        await call.write(pb.OpenMessage(taken=pb.Taken(num_pieces=num_taken)))

        await call.write(pb.OpenMessage(open=opening))

        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            await call.read()
        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        await it.side.all_back()
