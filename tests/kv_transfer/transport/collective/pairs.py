"""Both ends of a pair over Gloo, joined on loopback; and P's end in a process of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection

import torch
from tests.warm_processes import warm_processes
from torch import Tensor
from torch.distributed import Work

from baton.core.ids import Epoch, TransferId
from baton.core.kv_arena import KvArena
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.addresses import listen
from baton.kv_transfer.transport.collective.joint import (
    PairAddress,
    join_as_receiver,
    join_as_sender,
)
from baton.kv_transfer.transport.collective.receiving_pair import ReceivingPair
from baton.kv_transfer.transport.collective.sending_pair import SendingPair, Wanted
from baton.kv_transfer.transport.collective.staging import DeviceStaging, HostStaging, PointToPoint

LOOPBACK = "127.0.0.1"


def a_piece(*blocks: bytes) -> LentPiece:
    return LentPiece(
        transfer_id=TransferId("kv-1"),
        sender_epoch=Epoch("p"),
        receiver_epoch=Epoch("d"),
        plane=0,
        first_block=0,
        views=tuple(memoryview(block) for block in blocks),
        blocks=tuple(range(len(blocks))),
        checksums=b"",
        give_back=lambda: None,
    )


def a_joint(port: int) -> PairAddress:
    return PairAddress(backend="gloo", key=secrets.token_hex(8), host=LOOPBACK, port=port)


async def nobody_grants(num_before: int, pieces: Sequence[Wanted]) -> Sequence[int]:
    raise AssertionError(f"granted {len(pieces)} pieces")


async def grants_in_vain(num_before: int, pieces: Sequence[Wanted]) -> Sequence[int]:
    """P says that it sends, and does not."""
    return [number for number, _ in pieces]


class Counting(HostStaging):
    num_sent = 0

    def send(self, group: PointToPoint, data: Tensor) -> Work:
        self.num_sent += 1
        return super().send(group, data)


@dataclass(frozen=True)
class Announcement:
    number: int
    secret: bytes
    size: int
    lent: LentPiece


@dataclass
class Ends:
    p: SendingPair
    d: ReceivingPair
    may_grant: asyncio.Event
    """Cleared, D's grants do not reach P."""
    granted: list[list[int]] = field(default_factory=list)
    num_bytes_granted: list[int] = field(default_factory=list)
    """At each grant, these included: bytes that have yet to land."""

    def announce(self, data: bytes, give_back: Callable[[], None] = lambda: None) -> Announcement:
        """Lend a piece, and say how it is granted."""
        loan, lent = self.p.lend(replace(a_piece(data), give_back=give_back))
        return Announcement(loan.number, loan.secret, len(data), lent)

    def expect(self, announced: Announcement) -> asyncio.Future[Tensor]:
        return self.d.expect(announced.number, announced.secret, announced.size)


@asynccontextmanager
async def two_ends(staging: HostStaging | None = None) -> AsyncIterator[Ends]:
    """`staging` is P's."""
    listener = listen(LOOPBACK)
    joint = a_joint(listener.getsockname()[1])
    join = partial(join_as_sender, joint, listener)
    p = SendingPair("p", joint.key, join, staging or HostStaging())
    granted: list[list[int]] = []
    num_bytes_granted: list[int] = []
    may_grant = asyncio.Event()
    may_grant.set()

    async def grant(num_before: int, pieces: Sequence[Wanted]) -> list[int]:
        await may_grant.wait()
        granted.append([number for number, _ in pieces])
        num_bytes_granted.append(d.num_bytes_granted)
        return await p.post(num_before, pieces)

    d = ReceivingPair("d", partial(join_as_receiver, joint), HostStaging(), grant)
    await asyncio.gather(p.joined(), d.joined())
    d.num_users = 1
    try:
        yield Ends(p, d, may_grant, granted, num_bytes_granted)
    finally:
        await asyncio.gather(p.close("the test is over"), d.close("the test is over"))


class FarSender:
    """P's end in another process, where it can be killed or stopped."""

    def __init__(self) -> None:
        warm = warm_processes()
        self._pipe, theirs = warm.Pipe()
        self.process = warm.Process(target=self._serve, args=(theirs,), daemon=True)
        self.process.start()
        self.joint: PairAddress = self._pipe.recv()

    async def lend(self, size: int) -> tuple[int, bytes, int]:
        """So many random bytes; return how they are asked for."""
        self._pipe.send(size)
        ticket: tuple[int, bytes, int] = await asyncio.to_thread(self._pipe.recv)
        return ticket

    async def grant(self, num_before: int, pieces: Sequence[Wanted]) -> Sequence[int]:
        self._pipe.send((num_before, pieces))
        numbers: Sequence[int] = await asyncio.to_thread(self._pipe.recv)
        return numbers

    def end(self) -> None:
        self.process.kill()
        self.process.join()

    @staticmethod
    def _serve(pipe: Connection) -> None:
        asyncio.run(_send_on_request(pipe))


class FarGpuSender(FarSender):
    """Over NCCL, from the second GPU; it always sends the same blocks."""

    BLOCKS = bytes(range(256)) * 64

    @staticmethod
    def _serve(pipe: Connection) -> None:
        asyncio.run(_send_from_gpu(pipe))


async def _send_from_gpu(pipe: Connection) -> None:
    torch.cuda.set_device(1)
    blocks = torch.frombuffer(bytearray(FarGpuSender.BLOCKS), dtype=torch.uint8).view(4, -1)
    plane = blocks.cuda()
    arena = KvArena(
        num_blocks=4,
        block_bytes=(plane.shape[1],),
        planes=[plane],
        device="cuda:1",
        fd=None,
    )
    listener = listen(LOOPBACK)
    joint = replace(a_joint(listener.getsockname()[1]), backend="nccl")
    join = partial(join_as_sender, joint, listener)
    pair = SendingPair("p", joint.key, join, DeviceStaging(arena))
    pipe.send(joint)
    views = [bytes(block.numpy().data) for block in blocks]
    await _answer(pipe, pair, lambda _: a_piece(*views))


async def _send_on_request(pipe: Connection) -> None:
    listener = listen(LOOPBACK)
    joint = a_joint(listener.getsockname()[1])
    pair = SendingPair("p", joint.key, partial(join_as_sender, joint, listener), HostStaging())
    pipe.send(joint)
    await _answer(pipe, pair, lambda size: a_piece(os.urandom(size)))


async def _answer(pipe: Connection, pair: SendingPair, make: Callable[[int], LentPiece]) -> None:
    while True:
        match await asyncio.to_thread(pipe.recv):
            case int(size):
                piece = make(size)
                loan, _ = pair.lend(piece)
                pipe.send((loan.number, loan.secret, piece.num_bytes))
            case (num_before, pieces):
                pipe.send(await pair.post(num_before, pieces))
