"""One side of a transfer in a process of its own, which may be killed.

    python -m tests.kv_transfer.half_world TRANSPORT

Commands come as JSON, one a line; each is answered by a line, but for a fetch that is to get stuck:
it says so when it is, and is never heard of again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import threading
from contextlib import suppress
from typing import Any, Self

from tests.kv_transfer.replicas import TRANSFER
from tests.kv_transfer.world import World, connected

from baton.core.errors import TransferError
from baton.core.ids import Epoch, TransferId
from baton.kv_transfer.messages import KvPiece, Outcome, SettleTransfer


class OtherProcess:
    """The test's end of it."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, transport: str) -> Self:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "tests.kv_transfer.half_world",
            transport,
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
        )
        other = cls(process)
        told = await other.answer()
        other.address, other.sender, other.receiver = told
        return other

    address: str
    sender: Epoch
    receiver: Epoch

    async def ask(self, command: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([command, arguments]).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            return json.loads(await self._process.stdout.readline())

    def stop(self) -> None:
        self._process.send_signal(signal.SIGSTOP)

    async def kill(self) -> None:
        with suppress(ProcessLookupError):
            self._process.kill()
        await self._process.wait()


class _Half:
    """What the test may ask of this process."""

    def __init__(self, world: World) -> None:
        self.world = world

    async def grant(self, receiver: str, transfer_id: str = TRANSFER) -> bool:
        prefill = self.world.prefill
        return await self.world.on_p.call(
            lambda: prefill.grant(Epoch(receiver), TransferId(transfer_id))
        )

    async def compute(self, num_tokens: int | None, transfer_id: str = TRANSFER) -> None:
        await self.world.compute(num_tokens, TransferId(transfer_id))

    async def fetch(self, address: str, sender: str, transfer_id: str = TRANSFER) -> str:
        """How it ended: with the right bytes, or why not."""
        it, id_ = self.world, TransferId(transfer_id)
        it.decode.sender_address = address
        reservation = await it.on_d.call(lambda: it.decode.reserve(Epoch(sender), id_))
        assert reservation is not None
        try:
            await it.fetch(reservation)
        except TransferError as error:
            return str(error)
        await it.on_d.call(lambda: it.decode.adopt(id_))
        return "equal" if it.decode.holds_kv(id_) else "different"

    async def stick_at_piece(self, number: int) -> None:
        """The piece of that number is received and never released; nothing runs here any more."""

        def stick(seen: int, piece: KvPiece) -> KvPiece:
            if seen == number:
                _say("stuck")
                threading.Event().wait()
            return piece

        self.world.transport._alter = stick

    async def stick_when_sealed(self) -> None:
        """What is sealed is never told."""

        async def settle(address: str, request: SettleTransfer) -> Outcome:
            _say("stuck")
            return await asyncio.Event().wait()  # type: ignore[return-value]

        self.world.transport.settle = settle  # type: ignore[method-assign]


def _say(answer: Any) -> None:
    print(json.dumps(answer), flush=True)


async def _main(transport: str) -> None:
    async with connected(transport) as world:
        half = _Half(world)
        _say([world.address, world.prefill.sender.epoch, world.decode.receiver.epoch])
        while line := await asyncio.to_thread(sys.stdin.readline):
            command, arguments = json.loads(line)
            _say(await getattr(half, command)(**arguments))
        os._exit(0)


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1]))
