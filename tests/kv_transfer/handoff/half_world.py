"""One side of a transfer in a process of its own, which may be killed.

    test --"grpc"--> nursery, which has imported everything --forks--> a half of a world
     |<------ its pid, its address --------------------------------------|
     |------- commands ------------------------------------------------->|

Importing takes seconds, so the nursery does it once. Commands come as JSON, one a line; each is
answered by a line, but for a fetch that is to get stuck: it says so when it is, and is never heard
of again.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from tests.kv_transfer.replicas import TRANSFER
from tests.kv_transfer.world import World, connected

from baton.core.errors import TransferError
from baton.core.ids import Epoch, TransferId
from baton.kernels.cpu.library import library
from baton.kv_transfer.handoff.messages import KvPiece, Outcome, SettleTransfer


class OtherProcess:
    """The test's end of it."""

    address: str
    sender: Epoch
    receiver: Epoch

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._pid = 0

    async def hear_who_it_is(self) -> None:
        self._pid, self.address, self.sender, self.receiver = await self.answer()

    async def ask(self, command: str, **arguments: Any) -> Any:
        self._writer.write(json.dumps([command, arguments]).encode() + b"\n")
        return await self.answer()

    async def answer(self) -> Any:
        async with asyncio.timeout(120):
            return json.loads(await self._reader.readline())

    def stop(self) -> None:
        os.kill(self._pid, signal.SIGSTOP)

    async def kill(self) -> None:
        """Return when it is no more."""
        with suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)
            async with asyncio.timeout(120):
                while True:  # the nursery reaps it
                    os.kill(self._pid, 0)
                    await asyncio.sleep(0.002)
        self._writer.close()


@dataclass(frozen=True, slots=True)
class Nursery:
    door: Path

    async def start(self, transport: str) -> OtherProcess:
        reader, writer = await asyncio.open_unix_connection(self.door)
        writer.write(transport.encode() + b"\n")
        other = OtherProcess(reader, writer)
        await other.hear_who_it_is()
        return other


@contextmanager
def open_nursery(folder: Path) -> Iterator[Nursery]:
    door = folder / "door"
    command = [sys.executable, "-m", "tests.kv_transfer.handoff.half_world", str(door)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == b"open\n"
            yield Nursery(door)
        finally:
            process.kill()


class _Half:
    """What the test may ask of this process."""

    def __init__(self, world: World, answers: TextIO) -> None:
        self.world = world
        self._answers = answers

    def say(self, answer: Any) -> None:
        print(json.dumps(answer), file=self._answers, flush=True)

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
        await it.fetcher.close()  # P has been told by the time that this process may be killed
        await it.on_d.call(lambda: it.decode.adopt(id_))
        return "equal" if it.decode.holds_kv(id_) else "different"

    async def stick_at_piece(self, number: int) -> None:
        """The piece of that number is received and never released; nothing runs here any more."""

        def stick(seen: int, piece: KvPiece) -> KvPiece:
            if seen == number:
                self.say("stuck")
                threading.Event().wait()
            return piece

        self.world.transport._alter = stick

    async def stick_when_sealed(self) -> None:
        """What is sealed is never told."""

        async def settle(address: str, request: SettleTransfer) -> Outcome:
            self.say("stuck")
            return await asyncio.Event().wait()  # type: ignore[return-value]

        self.world.transport.settle = settle  # type: ignore[method-assign]


async def _main(commands: TextIO, answers: TextIO) -> None:
    transport = commands.readline().strip()
    async with connected(transport) as world:
        half = _Half(world, answers)
        epochs = world.prefill.sender.epoch, world.decode.receiver.epoch
        half.say([os.getpid(), world.address, *epochs])
        while line := await asyncio.to_thread(commands.readline):
            command, arguments = json.loads(line)
            half.say(await getattr(half, command)(**arguments))
        os._exit(0)


def _keep_nursery(door: str) -> None:
    """Each connection is that of a child. No thread runs here yet."""
    library()  # built here, if it must be: nobody then waits for it
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # the system reaps them
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(door)
        listening.listen()
        print("open", flush=True)
        while True:
            connection, _ = listening.accept()
            if os.fork() == 0:
                break
            connection.close()
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.dup2(2, 1)  # libraries may print, as NIXL does
    with connection.makefile("r") as commands, connection.makefile("w") as answers:
        asyncio.run(_main(commands, answers))


if __name__ == "__main__":
    _keep_nursery(sys.argv[1])
