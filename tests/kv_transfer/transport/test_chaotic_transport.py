from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing

import pytest
from tests.kv_transfer.replicas import LAYOUT, TRANSFER

from baton.core.chaos import Chaos, ChaosRule, Fault
from baton.core.clock import ManualClock
from baton.core.errors import TransferCut
from baton.core.ids import Epoch
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.transport.chaotic import ChaoticTransport

NUM_PIECES = 6
REQUEST = OpenTransfer(
    transfer_id=TRANSFER,
    sender_epoch=Epoch("p"),
    receiver_epoch=Epoch("d"),
    layout=LAYOUT,
    first_block=0,
)
SEALED = SettleTransfer(
    transfer_id=TRANSFER,
    sender_epoch=Epoch("p"),
    receiver_epoch=Epoch("d"),
    outcome=Outcome.SEALED,
)


class Orderly:
    """A transport that does as it should, and counts what is given back."""

    name = "orderly"

    def __init__(self) -> None:
        self.released: list[int] = []
        self.settled: list[Outcome | None] = []

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None: ...

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        for number in range(NUM_PIECES):
            yield KvPiece(
                transfer_id=TRANSFER,
                sender_epoch=Epoch("p"),
                receiver_epoch=Epoch("d"),
                plane=0,
                first_block=number,
                views=(memoryview(bytes([number]) * 8), memoryview(bytes([number]) * 8)),
                checksums=number.to_bytes(8, "little"),
                release=lambda number=number: self.released.append(number),  # type: ignore[misc]
            )

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        self.settled.append(request.outcome)
        return Outcome.SEALED

    async def close(self) -> None: ...


async def received(transport: ChaoticTransport) -> list[KvPiece]:
    pieces = []
    async with aclosing(transport.open("p", REQUEST)) as stream:
        async for piece in stream:
            pieces.append(piece)
            piece.release()
    return pieces


def chaotic(at: str, fault: Fault, **rule: float) -> tuple[Orderly, ChaoticTransport]:
    inner = Orderly()
    rules = (ChaosRule(at=at, fault=fault, **{"rate": 0.4, "delay_s": 0.0} | rule),)  # type: ignore[arg-type]
    return inner, ChaoticTransport(inner, Chaos(rules, seed=3))


@pytest.mark.parametrize(
    "fault", [Fault.DROP, Fault.DUPLICATE, Fault.REORDER, Fault.CORRUPT, Fault.TRUNCATE]
)
async def test_every_piece_is_given_back_once_whatever_becomes_of_it(fault: Fault) -> None:
    inner, transport = chaotic("transfer.piece", fault)

    pieces = await received(transport)

    assert sorted(inner.released) == list(range(NUM_PIECES))
    order = [piece.first_block for piece in pieces]
    match fault:
        case Fault.DROP:
            assert len(order) < NUM_PIECES
        case Fault.DUPLICATE:
            assert len(order) > NUM_PIECES
        case Fault.REORDER:
            assert sorted(order) == list(range(NUM_PIECES))
            assert order != sorted(order)
        case _:
            assert order == list(range(NUM_PIECES))


async def test_a_corrupt_piece_differs_in_one_bit() -> None:
    _, transport = chaotic("transfer.piece", Fault.CORRUPT, rate=1.0)

    pieces = await received(transport)

    for piece in pieces:
        got, sent = b"".join(piece.views), bytes([piece.first_block]) * 16
        flipped = int.from_bytes(got, "big") ^ int.from_bytes(sent, "big")
        assert flipped.bit_count() == 1


async def test_a_cut_gives_back_what_it_swallows() -> None:
    inner, transport = chaotic("transfer.piece", Fault.CUT)
    pieces: list[KvPiece] = []

    with pytest.raises(TransferCut, match="chaos"):
        async with aclosing(transport.open("p", REQUEST)) as stream:
            async for piece in stream:
                pieces.append(piece)
                piece.release()

    assert inner.released == list(range(len(pieces) + 1))


async def test_a_partition_lasts_as_long_as_it_says_and_covers_every_call() -> None:
    clock, inner = ManualClock(), Orderly()
    rule = ChaosRule(at="transfer.open", fault=Fault.PARTITION, rate=1.0, delay_s=5.0, max_times=1)
    transport = ChaoticTransport(inner, Chaos((rule,), seed=1), clock=clock)

    for call in (received(transport), transport.settle("p", SEALED)):
        with pytest.raises(TransferCut, match="cannot be reached"):
            await call
    clock.advance(5.0)

    assert len(await received(transport)) == NUM_PIECES
    assert await transport.settle("p", SEALED) is Outcome.SEALED


@pytest.mark.parametrize(("fault", "num_told"), [(Fault.DROP, 0), (Fault.DUPLICATE, 2)])
async def test_what_is_told_at_the_end_may_get_lost_or_arrive_twice(
    fault: Fault, num_told: int
) -> None:
    inner, transport = chaotic("transfer.settle", fault, rate=1.0)

    outcome = await asyncio.gather(transport.settle("p", SEALED), return_exceptions=True)

    assert len(inner.settled) == num_told
    assert isinstance(outcome[0], TransferCut) is (fault is Fault.DROP)
