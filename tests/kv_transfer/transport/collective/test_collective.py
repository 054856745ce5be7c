"""Transfers that share one pair: none waits for another, and none disturbs another by its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass

import pytest
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.transport.collective.pairs import LOOPBACK, a_piece

from baton.core.errors import StaleEpoch, TransferCut, TransportFailed
from baton.core.ids import Epoch, TransferId
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.collective import collective, receiving_pair
from baton.kv_transfer.transport.collective.collective import CollectiveSending, CollectiveTransport
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.control.servicer import KvTransferServicer
from baton.kv_transfer.transport.control.stream_window import MAX_UNTAKEN
from baton.proto.channels import Channels, listen, new_server

P, D = Epoch("p"), Epoch("d")
BLOCK_BYTES = 50_000
ENDLESS = 1 << 20


class ManyPieces:
    """A `SendingSide` with as many pieces as a transfer's id says, each filled with its number."""

    async def pieces(self, request: OpenTransfer) -> AsyncGenerator[LentPiece, None]:
        for number in range(int(request.transfer_id)):
            yield a_piece(bytes([number % 256]) * BLOCK_BYTES)

    async def settle(self, request: SettleTransfer) -> Outcome:
        return Outcome.UNKNOWN


def asking_for(num_pieces: int, sender: Epoch = P, receiver: Epoch = D) -> OpenTransfer:
    return OpenTransfer(
        transfer_id=TransferId(str(num_pieces)),
        sender_epoch=sender,
        receiver_epoch=receiver,
        layout=LAYOUT,
        first_block=0,
    )


@dataclass
class Joined:
    address: str
    transport: CollectiveTransport
    half: CollectiveSending
    sender: Epoch
    receiver: Epoch

    def open(self, num_pieces: int) -> AsyncGenerator[KvPiece, None]:
        asked = asking_for(num_pieces, self.sender, self.receiver)
        return self.transport.open(self.address, asked)

    async def fetch(self, num_pieces: int) -> list[int]:
        """What each piece is filled with."""
        found = []
        async with aclosing(self.open(num_pieces)) as pieces:
            async for piece in pieces:
                (view,) = piece.views
                assert view == bytes([view[0]]) * BLOCK_BYTES
                found.append(view[0])
                piece.release()
        return found

    @property
    def pairs(self) -> Sequence[object]:
        return list(self.transport._pairs.values())


@asynccontextmanager
async def joined(sender: Epoch = P, receiver: Epoch = D) -> AsyncIterator[Joined]:
    half = CollectiveSending("gloo", KvCache(LAYOUT, 1).arena)
    server, channels = new_server(), Channels()
    KvTransferServicer(ManyPieces(), sender, {"gloo": half}).serve(server)
    port = listen(server, f"{LOOPBACK}:0")
    await server.start()
    transport = CollectiveTransport("gloo", ControlClient(channels))
    try:
        yield Joined(f"{LOOPBACK}:{port}", transport, half, sender, receiver)
    finally:
        await transport.close()
        await half.close()
        await channels.close()
        await server.stop(None)


async def test_many_transfers_share_one_pair() -> None:
    async with joined() as it:
        found = await asyncio.gather(*(it.fetch(num_pieces) for num_pieces in range(1, 30)))

        assert found == [list(range(num_pieces)) for num_pieces in range(1, 30)]
        assert len(it.pairs) == 1


async def test_a_reader_that_takes_nothing_holds_up_no_other() -> None:
    async with joined() as it, aclosing(it.open(ENDLESS)) as pieces:
        held = [await anext(pieces) for _ in range(MAX_UNTAKEN)]  # and releases none

        assert await it.fetch(100) == list(range(100))

        assert [piece.views[0][0] for piece in held] == list(range(MAX_UNTAKEN))


async def test_transfers_in_both_directions_at_once_do_not_wait_for_each_other(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiving_pair, "MAX_GRANTED_BYTES", 2 * BLOCK_BYTES)
    async with joined() as there, joined(D, P) as back:
        unread = [it.open(ENDLESS) for it in (there, back)]
        held = [await anext(pieces) for pieces in unread for _ in range(MAX_UNTAKEN)]

        found = await asyncio.gather(*(it.fetch(60) for it in (there, back) for _ in range(2)))

        assert found == [list(range(60))] * 4
        assert len(held) == 2 * MAX_UNTAKEN
        for pieces in unread:
            await pieces.aclose()


async def test_streams_that_are_closed_early_leave_the_pair_in_step() -> None:
    async with joined() as it:
        await it.fetch(1)
        (pair,) = it.pairs
        for num_read in range(1, 20):
            async with aclosing(it.open(ENDLESS)) as pieces:
                for _ in range(num_read):
                    (await anext(pieces)).release()

        assert await it.fetch(50) == list(range(50))
        assert it.pairs == [pair]


async def test_readers_that_are_cancelled_anywhere_leave_the_pair_in_step() -> None:
    async with joined() as it:
        await it.fetch(1)
        (pair,) = it.pairs
        for num_turns in range(40):
            fetching = asyncio.create_task(it.fetch(ENDLESS))
            for _ in range(num_turns):
                await asyncio.sleep(0)
            fetching.cancel()
            with pytest.raises(asyncio.CancelledError):
                await fetching

        assert await it.fetch(50) == list(range(50))
        assert it.pairs == [pair]


async def test_a_pair_that_the_sender_has_lost_is_made_anew() -> None:
    async with joined() as it:
        await it.fetch(1)
        (pair,) = it.pairs
        await it.half.close()

        with pytest.raises(TransferCut):
            await it.fetch(1)

        assert await it.fetch(3) == [0, 1, 2]
        assert it.pairs != [pair]


async def test_another_incarnation_of_the_sender_is_not_met() -> None:
    async with joined() as it:
        with pytest.raises(StaleEpoch):
            await anext(it.transport.open(it.address, asking_for(1, Epoch("former"))))

        assert it.pairs == []


async def test_a_sender_that_cannot_listen_where_it_is_reached_says_so() -> None:
    async with joined() as it:
        question = collective._encode(
            collective._JoinWithGrants("key", "192.0.2.1")
        )  # nobody's address

        with pytest.raises(TransportFailed, match=r"cannot listen at '192.0.2.1'"):
            await it.half.meet(D, question)


async def test_a_question_that_cannot_be_read_is_refused() -> None:
    async with joined() as it:
        for question in (b"", b"\xc1", b"\x80"):
            with pytest.raises(TransportFailed):
                await it.half.meet(D, question)


async def test_closing_ends_a_meeting_under_way(monkeypatch: pytest.MonkeyPatch) -> None:
    async with joined() as it:
        is_asked = asyncio.Event()

        async def never(receiver_epoch: Epoch, payload: bytes) -> bytes:
            is_asked.set()
            return await asyncio.Event().wait() and b""

        monkeypatch.setattr(it.half, "meet", never)
        opening = asyncio.create_task(it.fetch(1))
        await is_asked.wait()

        await it.transport.close()

        with pytest.raises(TransportFailed, match="closes"):
            await opening


async def test_the_pair_used_longest_ago_makes_room(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collective, "MAX_PAIRS", 1)
    async with joined() as it:
        await it.fetch(1)
        (pair,) = it.transport._pairs.values()
        other = OpenTransfer(
            transfer_id=TransferId("1"),
            sender_epoch=P,
            receiver_epoch=Epoch("another D"),
            layout=LAYOUT,
            first_block=0,
        )

        async with aclosing(it.transport.open(it.address, other)) as pieces:
            (await anext(pieces)).release()

        assert pair.is_broken
        assert len(it.pairs) == 1


@pytest.mark.gpu
async def test_a_sender_without_kv_on_a_gpu_does_not_send_by_nccl() -> None:
    half = CollectiveSending("nccl", KvCache(LAYOUT, 1).arena)

    with pytest.raises(TransportFailed, match="not on a GPU"):
        await half.meet(D, collective._encode(collective._JoinWithGrants("key", LOOPBACK)))
