"""The transport that takes the fastest way to each peer, and says which and why.

first contact     go by gRPC; when that stream has ended, ask the peer what it sends by (`Meet`) and
                  measure each transport that could work
then              the fastest; of transports about equally fast, the one named first
one fails         it is left alone for a while, and the next best is taken

With `require` no other transport is ever taken, not even at first: a peer that none of them reaches
is refused (`check`), so that nothing is computed that could not be fetched. What is known of peers,
and what of it holds for others of their hosts, is in `known_peers.py`: to those a transport is set
up and tried, but not measured.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, replace

import msgspec

from baton.core.clock import Clock, monotonic
from baton.core.errors import NoTransport, TransferCut, TransferError, TransportFailed
from baton.core.ids import Epoch
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, PackedPiece, Transport
from baton.kv_transfer.transport.auto.known_peers import (
    MAX_PEERS,
    Facts,
    KnownPeers,
    Peer,
    SharedMeasurements,
    WayReport,
    best,
)
from baton.kv_transfer.transport.auto.probe import Prober
from baton.kv_transfer.transport.control.client import ControlClient

log = logging.getLogger(__name__)

SAFE = "grpc"
"""Works wherever replicas can reach each other."""
PROBE_BYTES = (64 << 10, 4 << 20)
"""A small one, which also sets the way up, and one that is measured."""
DEMOTED_S = 60.0
UNMEASURED_S = 60.0
"""Seconds before a transport that could not be measured is measured again."""
MAX_CUTS = 2
"""Streams in a row that may break on a way before it is left alone."""
MEETING_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class TransportOption:
    """One transport that `auto` may choose."""

    transport: Callable[[], Transport]
    fits: Callable[[str, Facts], bool]
    """Whether it could lead to the peer at this address."""


class AutoTransport:
    name = "auto"

    def __init__(
        self,
        ways: Mapping[str, TransportOption],
        control: ControlClient,
        *,
        require: tuple[str, ...] = (),
        clock: Clock = monotonic,
    ) -> None:
        self.num_streams: Counter[str] = Counter()
        """Streams opened, by transport."""
        self.num_demotions: Counter[str] = Counter()
        self.num_refused = 0
        """Times a peer was not used because nothing in `require` leads to it."""
        self._ways = {name: way for name, way in ways.items() if not require or name in require}
        self._control = control
        self._prober = Prober(control, clock=clock)
        self._require = require
        self._clock = clock
        self._peers = KnownPeers()
        self._one_at_a_time = asyncio.Semaphore(1)
        self._shared = SharedMeasurements(clock, MAX_PEERS * len(self._ways))

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """Meet a peer before anything is computed there, if `require` is set."""
        if not self._require:
            return
        peer = self._peers.at(address, sender)
        await self._meet_once(peer, receiver)
        self._check_met(peer)

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        peer = self._peers.at(address, request.sender_epoch)
        name = await self._choose(peer, request.receiver_epoch)
        self.num_streams[name] += 1
        transport = self._ways[name].transport()
        try:
            async with aclosing(transport.open(address, request)) as pieces:
                async for piece in pieces:
                    yield replace(piece, transport=name)
            peer.way(name).num_cuts = 0
        except TransferCut as error:
            self._note_cut(peer, name, error)
            raise
        finally:
            self._learn(peer, request.receiver_epoch)

    async def settle(self, address: str, request: SettleTransfer) -> Outcome:
        memory = self._ways.get("memory")
        if memory is not None and memory.fits(address, _NOBODY):
            return await memory.transport().settle(address, request)
        return await self._control.settle(address, request)

    async def close(self) -> None:
        """The transports it chose from are not its own."""
        tasks = [task for peer in self._peers for task in peer.tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.clear()

    async def measured(self) -> None:
        """Return when nothing is being measured."""
        while tasks := [task for peer in self._peers for task in peer.tasks]:
            if all(task.done() for task in tasks):
                return
            await asyncio.wait(tasks)

    def ways(self) -> list[WayReport]:
        """What is known at this moment."""
        return self._peers.reports(self._clock())

    def metrics(self) -> dict[str, float]:
        streams = {
            f'transport_streams_total{{transport="{name}"}}': num
            for name, num in self.num_streams.items()
        }
        demotions = {
            f'transport_demotions_total{{transport="{name}"}}': num
            for name, num in self.num_demotions.items()
        }
        rates: dict[str, float] = {}
        for way in self.ways():
            key = f'transport_bytes_per_second{{transport="{way.name}"}}'
            rates[key] = max(rates.get(key, 0.0), way.bytes_per_s or 0.0)
        return {**streams, **demotions, **rates, "transport_refused_total": self.num_refused}

    async def _choose(self, peer: Peer, receiver: Epoch) -> str:
        """Raises NoTransport, or what keeps the peer from being met."""
        if not peer.is_met and SAFE in self._ways:
            return SAFE
        await self._meet_once(peer, receiver)
        self._check_met(peer)
        chosen = best(peer.way_by_name, self._clock(), SAFE if SAFE in self._ways else "")
        if chosen != peer.chosen:
            log.info("KV from %s comes by %s", peer.address, chosen)
            peer.chosen = chosen
        return chosen

    def _check_met(self, peer: Peer) -> None:
        if peer.why_not:
            self.num_refused += 1
            log.error("%s", peer.why_not)
            raise NoTransport(peer.why_not)

    async def _meet_once(self, peer: Peer, receiver: Epoch) -> None:
        if peer.is_met:
            return
        if peer.meeting is None:
            peer.meeting = asyncio.create_task(self._meet(peer, receiver))
        meeting = peer.meeting
        try:
            await asyncio.shield(meeting)
        finally:
            if meeting.done() and peer.meeting is meeting:
                peer.meeting = None  # should it have failed, it may be tried again

    async def _meet(self, peer: Peer, receiver: Epoch) -> None:
        try:
            async with asyncio.timeout(MEETING_TIMEOUT_S):
                reply = await self._control.meet(peer.address, self.name, peer.epoch, receiver)
            theirs = msgspec.msgpack.decode(reply, type=Facts)
        except TimeoutError:
            raise TransferCut(f"{peer.address} did not answer") from None
        except (TransportFailed, ValueError):
            theirs = Facts(names=(SAFE,), host="", device="")
        fitting = [name for name, way in self._ways.items() if way.fits(peer.address, theirs)]
        for name in fitting:
            peer.way(name)
        peer.way_by_name = {name: peer.way_by_name[name] for name in fitting}
        peer.is_met, peer.theirs = True, theirs
        if not fitting:
            peer.why_not = (
                f"nothing that is required ({', '.join(self._require) or 'of all'}) leads to "
                f"{peer.address}, which sends by {', '.join(theirs.names)}"
            )

    def _note_cut(self, peer: Peer, name: str, error: TransferCut) -> None:
        way = peer.way(name)
        way.num_cuts += 1
        has_failed = isinstance(error, TransportFailed) or way.num_cuts >= MAX_CUTS
        if not has_failed or name == SAFE:
            return
        way.num_cuts = 0
        way.demoted_until, way.reason = self._clock() + DEMOTED_S, str(error)
        self.num_demotions[name] += 1
        log.warning("no KV by %s from %s for %g s: %s", name, peer.address, DEMOTED_S, error)

    def _learn(self, peer: Peer, receiver: Epoch) -> None:
        """Measure the ways to this peer in the background, if that has yet to be done."""
        if (
            self._peers.has(peer)
            and peer.measuring is None
            and self._clock() >= peer.measured_until
        ):
            peer.measuring = asyncio.create_task(self._measure(peer, receiver))

    async def _measure(self, peer: Peer, receiver: Epoch) -> None:
        try:
            await self._meet_once(peer, receiver)
        except TransferError as error:
            log.info("the ways to %s are not known: %s", peer.address, error)
        for name, way in list(peer.way_by_name.items()):  # a stream may add to them
            if way.measured is None:
                async with self._one_at_a_time:
                    await self._measure_way(peer, name, receiver)
        if not peer.is_met or any(way.measured is None for way in peer.way_by_name.values()):
            peer.measured_until = self._clock() + (UNMEASURED_S if peer.is_met else 0.0)
            peer.measuring = None  # again, at the end of some later stream

    async def _measure_way(self, peer: Peer, name: str, receiver: Epoch) -> None:
        way, transport = peer.way_by_name[name], self._ways[name].transport()
        elsewhere = self._shared.of(peer, name)
        try:
            for num_bytes in PROBE_BYTES if elsewhere is None else PROBE_BYTES[:1]:
                measured = await self._prober.measure(
                    transport, peer.address, peer.epoch, receiver, num_bytes
                )
            way.measured, way.reason = elsewhere or measured, ""
            if elsewhere is None:
                self._shared.add(peer, name, measured)
        except TransferError as error:
            way.reason = f"could not be measured: {error}"
            log.info("%s from %s %s", name, peer.address, way.reason)


_NOBODY = Facts(names=(), host="", device="")


class AutoSending:
    """P's half: tells what this replica sends by. No piece is ever packed by it."""

    max_piece_bytes = 0
    carry = None
    reads_in_place = False

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> PackedPiece:
        raise TransportFailed("`auto` stands for other transports, and carries nothing itself")

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(self._facts)

    async def close(self) -> None:
        """It holds nothing."""
