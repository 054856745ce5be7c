"""Both ends of a pair over Gloo, joined on loopback; and P's end in a process of its own."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from multiprocessing.connection import Connection

import torch
from tests.warm_processes import warm_processes

from baton.core.ids import Epoch, TransferId
from baton.core.kv_arena import KvArena
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.addresses import listen
from baton.kv_transfer.transport.collective.joint import (
    Joint,
    join_as_receiver,
    join_as_sender,
)
from baton.kv_transfer.transport.collective.pair import ReceivingPair, SendingPair
from baton.kv_transfer.transport.collective.staging import DeviceStaging, HostStaging

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


def a_joint(port: int) -> Joint:
    return Joint(backend="gloo", key=secrets.token_hex(8), host=LOOPBACK, port=port)


async def nobody_knows(first: int, stop: int | None) -> Sequence[int]:
    raise AssertionError(f"asked for pieces from {first} on")


@dataclass
class Ends:
    p: SendingPair
    d: ReceivingPair
    asked: list[tuple[int, int | None]] = field(default_factory=list)


@asynccontextmanager
async def two_ends() -> AsyncIterator[Ends]:
    listener = listen(LOOPBACK)
    joint = a_joint(listener.getsockname()[1])
    p = SendingPair("p", partial(join_as_sender, joint, listener), HostStaging())
    asked: list[tuple[int, int | None]] = []

    async def inquire(first: int, stop: int | None) -> list[int]:
        asked.append((first, stop))
        return p.sizes(first, stop)

    d = ReceivingPair("d", partial(join_as_receiver, joint), HostStaging(), inquire)
    await asyncio.gather(p.joined(), d.joined())
    d.num_users = 1
    try:
        yield Ends(p, d, asked)
    finally:
        await asyncio.gather(p.close("the test is over"), d.close("the test is over"))


class FarSender:
    """P's end in another process, where it can be killed or stopped."""

    def __init__(self) -> None:
        warm = warm_processes()
        self._pipe, theirs = warm.Pipe()
        self.process = warm.Process(target=self._serve, args=(theirs,), daemon=True)
        self.process.start()
        self.joint: Joint = self._pipe.recv()

    async def send(self, size: int) -> tuple[int, int]:
        """So many random bytes; return their number and size."""
        self._pipe.send(size)
        numbered: tuple[int, int] = await asyncio.to_thread(self._pipe.recv)
        return numbered

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
    pair = SendingPair("p", partial(join_as_sender, joint, listener), DeviceStaging(arena))
    pipe.send(joint)
    while True:
        await asyncio.to_thread(pipe.recv)
        views = [bytes(block.numpy().data) for block in blocks]
        pipe.send(await pair.send(a_piece(*views)))


async def _send_on_request(pipe: Connection) -> None:
    listener = listen(LOOPBACK)
    joint = a_joint(listener.getsockname()[1])
    pair = SendingPair("p", partial(join_as_sender, joint, listener), HostStaging())
    pipe.send(joint)
    while True:
        size = await asyncio.to_thread(pipe.recv)
        pipe.send(await pair.send(a_piece(os.urandom(size))))
