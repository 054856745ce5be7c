"""Raw TCP's pieces: sent once, given back, and what a broken connection costs."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import aclosing, suppress
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import pytest
from tests.kv_transfer.replicas import LAYOUT, PROMPT, TRANSFER, kv_of
from tests.kv_transfer.transport.control_ends import (
    RECEIVER,
    PreparedSide,
    control_ends,
)
from tests.kv_transfer.transport.tcp.sharing import sharing, until
from tests.kv_transfer.world import KV_BYTES, NUM_BLOCKS, connected

from baton.core.block_views import BlockViews
from baton.core.errors import CorruptPiece, TransferAborted, TransferCut
from baton.kv_transfer.handoff.lease import ReceiverState
from baton.kv_transfer.handoff.messages import OpenTransfer
from baton.kv_transfer.handoff.transport import LentPiece, Parcel
from baton.kv_transfer.layouts.integrity import (
    CHECKSUM_BYTES,
    checksums_of,
    with_own_checksum,
)
from baton.kv_transfer.transport.control import client
from baton.kv_transfer.transport.control.wire import open_to_proto
from baton.kv_transfer.transport.lent import SECRET_BYTES, Loan, Loans
from baton.kv_transfer.transport.tcp import connection as connections
from baton.kv_transfer.transport.tcp import serving
from baton.kv_transfer.transport.tcp.connection import Arrival, DataConnection
from baton.kv_transfer.transport.tcp.frames import HEADER, Ticket, ticket_of
from baton.kv_transfer.transport.tcp.serving import ServedConnection
from baton.kv_transfer.transport.tcp.tcp import TcpSending, TcpTransport
from baton.proto import kv_pb2 as pb

NO_SECRET = bytes(SECRET_BYTES)
Read: TypeAlias = Callable[[Arrival, Sequence[memoryview]], None]
Sent: TypeAlias = deque[tuple[int, Loan]]


def summed(arrival: Arrival, targets: Sequence[memoryview]) -> None:
    [memory] = targets
    arrival.read_summed(BlockViews(memory, [0], memory.nbytes), 64)


def pair() -> tuple[socket.socket, socket.socket]:
    """Two ends of a TCP connection, which takes little before it is read."""
    with socket.create_server(("127.0.0.1", 0)) as door, socket.socket() as ours:
        door.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 64 << 10)
        ours.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 << 10)
        ours.connect(door.getsockname())
        return ours.dup(), door.accept()[0]


async def test_a_piece_is_sent_once_to_who_knows_its_secret() -> None:
    async with sharing() as (it, half, transport):
        request = it.request
        connection = await transport._pool.take(it.address, request)
        async with aclosing(it.side.pieces(request)) as pieces:
            piece = await anext(pieces)
            loan, lent = half._loans.lend(piece)
            ticket = ticket_of(loan)
            memory = memoryview(bytearray(LAYOUT.layer_block_bytes))

            guessed = connection.expect(replace(ticket, secret=NO_SECRET), 1)
            guessed.drop()
            right = connection.expect(ticket, 1)
            await asyncio.to_thread(right.read, [memory])
            again = connection.expect(ticket, 1)
            with pytest.raises(TransferCut, match="0 of piece 1 came"):
                await asyncio.to_thread(again.read, [memory])

            assert bytes(memory) == bytes(piece.views[0])
            lent.give_back()
            assert it.side.back == [0]


def test_a_piece_given_back_while_it_is_sent_is_kept_until_that_is_over() -> None:
    back: list[int] = []
    loans, piece = Loans(), a_piece(lambda: back.append(1))
    loan, lent = loans.lend(piece)
    assert loans.claim(loan.number, loan.secret) is loan

    lent.give_back()

    assert not back
    assert loan.is_wanted_back
    loans.sent(loan)
    assert back == [1]
    assert loans.claim(loan.number, loan.secret) is None


def a_piece(give_back: Callable[[], None]) -> LentPiece:
    return LentPiece(
        transfer_id=TRANSFER,
        sender_epoch=RECEIVER,
        receiver_epoch=RECEIVER,
        plane=0,
        first_block=0,
        views=(memoryview(bytes(8)),),
        blocks=(0,),
        checksums=bytes(8),
        give_back=give_back,
    )


async def test_a_receiver_that_reads_nothing_does_not_keep_what_is_wanted_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "SLICE_S", 0.05)
    monkeypatch.setattr(serving, "seconds_for", lambda num_bytes: 3600.0)
    back, loans = threading.Event(), Loans()
    ours, theirs = pair()
    large = replace(a_piece(back.set), views=(memoryview(bytes(64 << 20)),))
    loan, lent = loans.lend(large)
    served = ServedConnection(theirs, loans, lambda _: None)
    ours.sendall(ticket_of(loan).ask)
    await until(lambda: not len(loans))

    lent.give_back()

    assert await asyncio.to_thread(back.wait, 60)
    served.close()
    ours.close()


@pytest.mark.parametrize("unit_bytes", [0, 8192], ids=["summed up before", "as it is sent"])
async def test_a_piece_that_is_given_up_while_it_is_sent_is_back_at_once_and_not_read_any_more(
    monkeypatch: pytest.MonkeyPatch, unit_bytes: int
) -> None:
    monkeypatch.setattr(serving, "SLICE_S", 3600.0)
    monkeypatch.setattr(serving, "seconds_for", lambda num_bytes: 3600.0)
    back, loans, size = threading.Event(), Loans(), 64 << 20
    ours, theirs = pair()
    memory, of_another_request = memoryview(bytearray(size)), b"\1" * size
    views = BlockViews(memory, range(0, size, 1 << 20), 1 << 20)
    loan, lent = loans.lend(replace(a_piece(back.set), views=views, unit_bytes=unit_bytes))
    ServedConnection(theirs, loans, lambda _: None)
    ours.sendall(ticket_of(loan).ask)
    assert len(await asyncio.to_thread(ours.recv, HEADER.size)) == HEADER.size

    lent.give_up()
    lent.give_back()

    assert await asyncio.to_thread(back.wait, 60)
    memory[:] = of_another_request
    while more := await asyncio.to_thread(ours.recv, 1 << 20):
        assert not any(more)
    ours.close()


async def test_every_piece_is_given_back_when_a_receiver_leaves_in_the_middle() -> None:
    back: list[int] = []
    loans, over = Loans(), threading.Event()
    ours, theirs = pair()
    data = (memoryview(bytes(4 << 20)),)
    lent = [
        loans.lend(replace(a_piece(partial(back.append, number)), views=data))
        for number in range(3)
    ]
    ServedConnection(theirs, loans, lambda _: over.set())
    ours.sendall(b"".join(ticket_of(loan).ask for loan, _ in lent))
    await until(lambda: len(loans) < 3)

    lent[1][1].give_back()
    assert back == [1]  # at once: it is not its turn
    ours.close()

    assert await asyncio.to_thread(over.wait, 60)
    for _, piece in (lent[0], lent[2]):
        piece.give_back()
    assert back == [1, 0, 2]


async def test_a_piece_that_was_taken_does_not_cut_those_sent_together_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "SLICE_S", 0.05)
    loans, over, size = Loans(), threading.Event(), 400 << 10
    ours, theirs = pair()
    data = (memoryview(bytes(size)),)
    lent = [loans.lend(replace(a_piece(lambda: None), views=data)) for _ in range(2)]
    connection = DataConnection(ours, "tcp from here")
    arrivals = [connection.expect(ticket_of(loan), 1) for loan, _ in lent]
    ServedConnection(theirs, loans, lambda _: over.set())
    memory = memoryview(bytearray(size))

    await asyncio.to_thread(arrivals[0].read, [memory])
    lent[0][1].give_back()
    assert not await asyncio.to_thread(over.wait, 0.2)
    await asyncio.to_thread(arrivals[1].read, [memory])

    connection.close("it is over")


async def test_nothing_is_written_once_a_connection_is_given_up() -> None:
    ours, theirs = pair()
    connection, memory = DataConnection(ours, "tcp from here"), memoryview(bytearray(64))
    arrival = connection.expect(Ticket(7, NO_SECRET, 64), 1)
    reading = asyncio.create_task(asyncio.to_thread(arrival.read, [memory]))
    theirs.sendall(HEADER.pack(7, 64) + b"\1" * 16)
    await until(lambda: memory[0] == 1)

    connection.close("its stream was given up")

    with suppress(OSError):
        theirs.sendall(b"\2" * 48)
    with pytest.raises(TransferCut):
        await reading
    assert bytes(memory) == b"\1" * 16 + bytes(48)
    theirs.close()


@pytest.mark.parametrize(
    "answer",
    [HEADER.pack(8, 64), HEADER.pack(7, 1 << 60), HEADER.pack(7, 0), b"HTTP/1.1 400 Bad"],
    ids=["another piece", "too long", "not lent", "garbage"],
)  # fmt: skip
@pytest.mark.parametrize("read", [Arrival.read, summed], ids=["read", "summed up"])
async def test_whatever_else_comes_than_the_piece_cuts_the_stream(
    answer: bytes, read: Read
) -> None:
    ours, theirs = pair()
    connection, memory = DataConnection(ours, "tcp from here"), memoryview(bytearray(64))
    broken: list[TransferCut] = []
    connection.begin(broken.append)
    arrival = connection.expect(Ticket(7, NO_SECRET, 64), 1)
    theirs.sendall(answer)

    with pytest.raises(TransferCut, match="asked for piece 7 of 64 bytes"):
        await asyncio.to_thread(read, arrival, [memory])

    await until(lambda: broken)
    assert not any(memory)
    assert not connection.is_fresh
    theirs.close()


@pytest.mark.parametrize("read", [Arrival.read, summed], ids=["read", "summed up"])
async def test_a_dripping_sender_is_cut(monkeypatch: pytest.MonkeyPatch, read: Read) -> None:
    monkeypatch.setattr(connections, "SLICE_S", 0.02)
    monkeypatch.setattr(connections, "seconds_for", lambda num_bytes: 0.1)
    ours, theirs = pair()
    connection, memory = DataConnection(ours, "tcp from here"), memoryview(bytearray(1 << 20))
    arrival = connection.expect(Ticket(7, NO_SECRET, 1 << 20), 1)
    theirs.sendall(HEADER.pack(7, 1 << 20))

    async def drip() -> None:
        while True:
            theirs.send(b"\1")
            await asyncio.sleep(0.01)

    dripping = asyncio.create_task(drip())
    with pytest.raises(TransferCut, match="not there in time"):
        async with asyncio.timeout(60):
            await asyncio.to_thread(read, arrival, [memory])
    dripping.cancel()
    theirs.close()


async def test_pieces_may_be_read_in_any_order_or_not_at_all() -> None:
    async with sharing() as (it, _, transport):
        async with aclosing(transport.open(it.address, it.request)) as opened:
            pieces = [await anext(opened) for _ in range(4)]
            pieces[1].release()

            found = await asyncio.to_thread(
                lambda: [bytes(pieces[number].views[0])[:1] for number in (2, 0, 3)]
            )

            assert found == [b"\2", b"\0", b"\3"]
            for piece in pieces:
                piece.release()
        await it.side.all_back()


async def test_a_connection_cut_within_a_piece_costs_that_piece(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cuts = [ServedConnection._send]

    def send(self: ServedConnection, parts: list[memoryview], loans: Sent, num_bytes: int) -> bool:
        if len(cuts) < 3:
            cuts.append(cuts[0])
            parts = [parts[0], parts[1][:7]]
            cuts[0](self, parts, loans, num_bytes)
            return False
        return cuts[0](self, parts, loans, num_bytes)

    monkeypatch.setattr(ServedConnection, "_send", send)
    monkeypatch.setattr(serving, "can_send", lambda: False)
    async with connected("tcp") as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_reopened == 2
        assert it.decode.receiver.counters.num_bytes == KV_BYTES
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.parametrize("is_compiled", [True, False])
async def test_blocks_of_a_lease_that_ends_while_its_sender_stalls_are_free_at_once(
    monkeypatch: pytest.MonkeyPatch, is_compiled: bool
) -> None:
    is_over, send = threading.Event(), ServedConnection._send

    def stall(self: ServedConnection, parts: list[memoryview], loans: Sent, num_bytes: int) -> bool:
        send(self, [parts[0], parts[1][:7]], deque(), num_bytes)
        is_over.wait(300)
        return False

    monkeypatch.setattr(ServedConnection, "_send", stall)
    monkeypatch.setattr(serving, "can_send", lambda: False)
    monkeypatch.setattr(connections, "seconds_for", lambda num_bytes: 3600.0)
    if not is_compiled:  # else nothing of a piece is in its blocks before a MiB of it has come
        monkeypatch.setattr(connections, "can_receive", lambda unit_bytes: False)
    async with connected("tcp") as it:
        fetching = asyncio.create_task(it.fetch(await it.grant()))
        await it.compute()
        await until(lambda: it.decode.receiver.state(TRANSFER) is ReceiverState.FILLING)

        await it.on_d.call(lambda: it.decode.receiver.expire(it.decode.clock() + 61))

        with pytest.raises(TransferAborted, match="its time is up"):
            async with asyncio.timeout(60):
                await fetching
        await until(lambda: it.decode.receiver.num_leased_blocks == 0)
        assert not any(plane.any() for plane in it.decode.cache.planes)
        is_over.set()
        await it.assert_nothing_is_left()


class Striking:
    """Strikes what P sends of its first piece, or of another: header, units, their checksums."""

    def __init__(self, strike: Callable[[bytearray, int], None], number: int = 1) -> None:
        self._strike = strike
        self._num_before = number

    def send(self, connection: ServedConnection, loan: Loan) -> bool:
        piece = loan.piece
        data = b"".join(piece.views)
        sums = with_own_checksum(checksums_of(piece.views, piece.unit_bytes))
        message = bytearray(HEADER.pack(loan.number, len(data) + len(sums)) + data + sums)
        self._num_before -= 1
        if not self._num_before:
            self._strike(message, HEADER.size + len(data))
        connection._socket.sendall(message)
        return len(message) == HEADER.size + len(data) + len(sums)


@pytest.fixture(params=[True, False], ids=["compiled", "not compiled"])
def reading(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr(connections, "can_receive", lambda unit_bytes: False)


def flip_a_byte(message: bytearray, end: int) -> None:
    message[end - 1] ^= 1


def flip_a_checksum(message: bytearray, end: int) -> None:
    message[end] ^= 1


def flip_the_checksum_of_checksums(message: bytearray, end: int) -> None:
    message[-1] ^= 1


def sum_up_other_bytes(message: bytearray, end: int) -> None:
    """As if they had changed where they lie, before they were summed up."""
    other = bytearray(message[end:-CHECKSUM_BYTES])
    other[0] ^= 1
    message[end:] = with_own_checksum(bytes(other))


def cut_within_the_checksums(message: bytearray, end: int) -> None:
    flip_a_byte(message, end)  # it must not be taken for right
    del message[end + 3 :]


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize(
    ("strike", "num_asked_again", "num_reopened"),
    [
        (flip_a_byte, 1, 0),
        (flip_a_checksum, 1, 0),
        (flip_the_checksum_of_checksums, 1, 0),
        (cut_within_the_checksums, 0, 1),
    ],
)
async def test_a_piece_that_its_checksums_do_not_prove_is_asked_for_again(
    monkeypatch: pytest.MonkeyPatch,
    strike: Callable[[bytearray, int], None],
    num_asked_again: int,
    num_reopened: int,
) -> None:
    striking = Striking(strike)
    monkeypatch.setattr(ServedConnection, "_send_summed", lambda *at: striking.send(*at))
    async with connected("tcp") as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert (report.num_asked_again, report.num_reopened) == (num_asked_again, num_reopened)
        assert it.decode.receiver.counters.num_bytes == KV_BYTES
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.usefixtures("reading")
@pytest.mark.parametrize("block_size", [LAYOUT.block_size, 2 * LAYOUT.block_size])
async def test_a_piece_that_comes_again_with_another_checksum_is_not_trusted_and_not_kept(
    monkeypatch: pytest.MonkeyPatch, block_size: int
) -> None:
    striking = Striking(sum_up_other_bytes)
    monkeypatch.setattr(ServedConnection, "_send_summed", lambda *at: striking.send(*at))
    decode_layout = replace(LAYOUT, block_size=block_size)
    async with connected("tcp", decode_layout=decode_layout) as it:
        reservation = await it.grant()
        await it.compute()

        with pytest.raises(CorruptPiece, match="has arrived before, with other bytes"):
            await it.fetch(reservation)

        assert 2 in it.fetcher._scores.metrics(0.0).values(), "both count against the sender"
        first = kv_of(PROMPT, 0, 0, decode_layout)
        written = {bytes(it.decode.cache.view(block, 0)) for block in range(NUM_BLOCKS)}
        assert bytes(len(first)) in written and first not in written
        await it.assert_nothing_is_left()


async def test_to_a_receiver_that_does_not_read_checksums_behind_the_bytes_they_are_announced(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def older(*args: Any, **more: Any) -> pb.OpenRequest:
        opening = open_to_proto(*args, **more)
        opening.ClearField("reads_sums_behind")
        return opening

    monkeypatch.setattr(client, "open_to_proto", older)
    monkeypatch.setattr(ServedConnection, "_send_summed", None)
    async with connected("tcp") as it:
        reservation = await it.grant()
        await it.compute()

        await it.fetch(reservation)

        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


async def test_a_stream_that_is_given_up_while_it_ends_leaves_nothing() -> None:
    async with sharing(PreparedSide(4, is_endless=True)) as (it, half, transport):
        opened = transport.open(it.address, it.request)
        await anext(opened)  # and may still be read

        ending = asyncio.create_task(opened.aclose())
        await asyncio.sleep(0.05)
        ending.cancel()

        await asyncio.gather(ending, return_exceptions=True)
        await until(lambda: not half._served)
        await it.side.all_back()


@pytest.mark.parametrize(
    "ticket",
    [
        b"abc",
        Ticket(1, NO_SECRET, 0),
        Ticket(1, NO_SECRET, 1 << 40),
        Ticket(1, NO_SECRET, 64, 48),
        Ticket(1, NO_SECRET, 1 << 28, 1),  # 2 GiB of checksums
    ],
)
async def test_a_ticket_for_what_no_piece_could_be_is_refused(ticket: bytes | Ticket) -> None:
    class Forging(TcpSending):
        async def pack(self, piece: LentPiece, request: OpenTransfer) -> Parcel:
            return Parcel(ticket=ticket if isinstance(ticket, bytes) else ticket.pack())

    half = Forging()
    async with control_ends(PreparedSide(1), tcp=half) as it:
        transport = TcpTransport(it.client)
        with pytest.raises(TransferCut, match="ticket"):
            await anext(transport.open(it.address, it.request))
        await it.side.all_back()
        await transport.close()
    await half.close()
