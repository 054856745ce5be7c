"""When P gets back the pieces that it lends to raw TCP."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import pytest
from tests.kv_transfer.replicas import TRANSFER
from tests.kv_transfer.transport.control_ends import (
    RECEIVER,
)
from tests.kv_transfer.transport.tcp.sharing import pair, until

from baton.core.block_views import BlockViews
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.lent import Loans
from baton.kv_transfer.transport.tcp import serving
from baton.kv_transfer.transport.tcp.connection import DataConnection
from baton.kv_transfer.transport.tcp.frames import HEADER, ticket_of
from baton.kv_transfer.transport.tcp.serving import ServedConnection


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
