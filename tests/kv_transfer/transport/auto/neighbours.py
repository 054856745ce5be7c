"""A receiver that has several ways to one sender, each as quick as its test says."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import cast

import msgspec
from tests.kv_transfer.replicas import LAYOUT, TRANSFER

from baton.core.clock import ManualClock
from baton.core.errors import TransferError
from baton.core.ids import Epoch, TransferId, new_epoch
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.layouts.integrity import unit_checksums
from baton.kv_transfer.transport.auto.auto import AutoTransport, TransportOption
from baton.kv_transfer.transport.auto.known_peers import Facts
from baton.kv_transfer.transport.control.client import ControlClient, ProbeOffer

SENDER, RECEIVER = new_epoch(), new_epoch()
ADDRESS = "there:1"
BLOCK = memoryview(bytes(LAYOUT.layer_block_bytes))


class ScriptedWay:
    """Takes so long for every piece, by the test's clock, or fails."""

    def __init__(self, name: str, clock: ManualClock, piece_s: float) -> None:
        self.name = name
        self.piece_s = piece_s
        self.error: TransferError | None = None
        self.num_opened = 0
        self._clock = clock

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None: ...

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        self.num_opened += 1
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        for layer in range(LAYOUT.num_layers):
            self._clock.now += self.piece_s
            yield KvPiece(
                transfer_id=request.transfer_id,
                sender_epoch=request.sender_epoch,
                receiver_epoch=request.receiver_epoch,
                plane=layer,
                first_block=0,
                views=(BLOCK,),
                checksums=unit_checksums(BLOCK, LAYOUT.unit_bytes),
            )

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        raise AssertionError("outcomes are told on the control stream")

    async def close(self) -> None: ...


class ScriptedControl:
    """A peer that sends by everything there is, unless told otherwise."""

    def __init__(self) -> None:
        self.facts: Facts | TransferError = Facts(("shm", "gloo", "grpc"), "host", "cpu")
        self.num_met = 0
        self.num_offered = 0

    async def meet(
        self, address: str, transport: str, sender: Epoch, receiver: Epoch, payload: bytes = b""
    ) -> bytes:
        assert transport == "auto"
        self.num_met += 1
        await asyncio.sleep(0)
        if isinstance(self.facts, TransferError):
            raise self.facts
        return msgspec.msgpack.encode(self.facts)

    async def offer_probe(
        self, address: str, sender: Epoch, receiver: Epoch, num_bytes: int, time_left_s: float
    ) -> ProbeOffer:
        self.num_offered += 1
        return ProbeOffer(transfer_id=TransferId("probe"), layout=LAYOUT, num_blocks=1)

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        return Outcome.SEALED


class Neighbours:
    """A receiver with three ways to one sender."""

    def __init__(self, piece_s: Mapping[str, float], *, require: tuple[str, ...] = ()) -> None:
        self.clock, self.control = ManualClock(), ScriptedControl()
        self.by_name = {
            name: ScriptedWay(name, self.clock, seconds) for name, seconds in piece_s.items()
        }
        ways = {name: self._way(way) for name, way in self.by_name.items()}
        control = cast(ControlClient, self.control)
        self.auto = AutoTransport(ways, control, require=require, clock=self.clock)

    def _way(self, way: ScriptedWay) -> TransportOption:
        return TransportOption(lambda: way, lambda address, theirs: way.name in theirs.names)

    async def fetch(self, *, sender: Epoch = SENDER, address: str = ADDRESS) -> str:
        """The way that the pieces of one transfer came."""
        request = OpenTransfer(
            transfer_id=TRANSFER,
            sender_epoch=sender,
            receiver_epoch=RECEIVER,
            layout=LAYOUT,
            first_block=0,
        )
        async with aclosing(self.auto.open(address, request)) as pieces:
            (name,) = {piece.transport async for piece in pieces}
        return name
