"""The transport that takes the fastest way to each peer, and says which and why.

first contact     go by gRPC; when that stream has ended, ask the peer what it sends by (`Meet`) and
                  measure each transport that could work
then              the fastest; of transports about equally fast, the one named first
one fails         it is left alone for a while, and the next best is taken

With `require` no other transport is ever taken, not even at first: a peer that none of them reaches
is refused (`check`), so that nothing is computed there in vain. What was learnt belongs to one
incarnation of a peer. How fast a transport is holds, for a while, for all peers of its host that
describe themselves alike: to those it is set up and tried, but not measured.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field, replace

import msgspec

from baton.core.clock import Clock, monotonic
from baton.core.errors import NoTransport, TransferCut, TransferError, TransportFailed
from baton.core.ids import Epoch
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.handoff.transport import LentPiece, Parcel, Transport
from baton.kv_transfer.transport.auto.probe import Prober, ProbeRound
from baton.kv_transfer.transport.control.client import ControlClient

log = logging.getLogger(__name__)

SAFE = "grpc"
"""Works wherever replicas can reach each other."""
PROBE_BYTES = (64 << 10, 4 << 20)
"""A small one, which also sets the way up, and one that is measured."""
ABOUT_EQUAL = 0.6
"""A way with this share of the fastest one's rate is as good. One short probe each, on a machine
that does other things as well, tells no finer than that."""
DEMOTED_S = 60.0
UNMEASURED_S = 60.0
"""Seconds before a transport that could not be measured is measured again."""
MAX_CUTS = 2
"""Streams in a row that may break on a way before it is left alone."""
MEETING_TIMEOUT_S = 5.0
MAX_PEERS = 256
SHARED_S = 600.0
"""Seconds for which what was measured of one peer holds for others of its host."""


class Facts(msgspec.Struct, frozen=True):
    """What a peer must be known by to tell which ways could lead to it."""

    names: tuple[str, ...]
    """Names of the transports it sends by."""
    host: str
    device: str


@dataclass(frozen=True, slots=True)
class TransportOption:
    """One transport that `auto` may choose."""

    transport: Callable[[], Transport]
    fits: Callable[[str, Facts], bool]
    """Whether it could lead to the peer at this address."""


@dataclass(slots=True)
class _Record:
    """What is known of one way to one peer."""

    measured: ProbeRound | None = None
    num_cuts: int = 0
    demoted_until: float = 0.0
    reason: str = ""
    """Why it was demoted, or could not be measured."""


@dataclass(slots=True, eq=False)
class _Peer:
    address: str
    epoch: Epoch
    record_by_way: dict[str, _Record] = field(default_factory=dict)
    """Records of the ways that could work; best by name first. Empty before the peer was met."""
    is_met: bool = False
    theirs: Facts | None = None
    """What it says of itself, once it is met."""
    why_not: str = ""
    """Why none is left, once it is met."""
    meeting: asyncio.Task[None] | None = None
    measuring: asyncio.Task[None] | None = None
    measured_until: float = 0.0
    """Nothing is measured before."""
    chosen: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WayReport:
    """One way to one peer, for operators."""

    address: str
    epoch: Epoch
    name: str
    is_chosen: bool
    bytes_per_s: float | None
    latency_s: float | None
    is_demoted: bool
    reason: str


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
        self._peers: OrderedDict[str, _Peer] = OrderedDict()
        self._one_at_a_time = asyncio.Semaphore(1)
        self._shared: OrderedDict[tuple[Facts, str], tuple[ProbeRound, float]] = OrderedDict()
        """Measurements of one peer and when they were made, by the facts of peers and by
        transport."""

    async def check(self, address: str, sender: Epoch, receiver: Epoch) -> None:
        """Meet a peer before anything is computed there, if `require` is set."""
        if not self._require:
            return
        peer = self._peer(address, sender)
        await self._meet_once(peer, receiver)
        self._check_met(peer)

    async def open(self, address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
        peer = self._peer(address, request.sender_epoch)
        name = await self._choose(peer, request.receiver_epoch)
        self.num_streams[name] += 1
        transport = self._ways[name].transport()
        try:
            async with aclosing(transport.open(address, request)) as pieces:
                async for piece in pieces:
                    yield replace(piece, transport=name)
            self._record(peer, name).num_cuts = 0
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
        tasks = [task for peer in self._peers.values() for task in _tasks_of(peer)]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._peers.clear()

    async def measured(self) -> None:
        """Return when nothing is being measured."""
        while tasks := [task for peer in self._peers.values() for task in _tasks_of(peer)]:
            if all(task.done() for task in tasks):
                return
            await asyncio.wait(tasks)

    def ways(self) -> list[WayReport]:
        """What is known at this moment."""
        now = self._clock()
        return [
            WayReport(
                address=peer.address,
                epoch=peer.epoch,
                name=name,
                is_chosen=name == peer.chosen,
                bytes_per_s=record.measured.bytes_per_s if record.measured else None,
                latency_s=record.measured.latency_s if record.measured else None,
                is_demoted=record.demoted_until > now,
                reason=record.reason,
            )
            for peer in self._peers.values()
            for name, record in peer.record_by_way.items()
        ]

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

    def _peer(self, address: str, epoch: Epoch) -> _Peer:
        peer = self._peers.get(address)
        if peer is None or peer.epoch != epoch:
            _stop(peer)
            peer = self._peers[address] = _Peer(address, epoch)
        self._peers.move_to_end(address)
        while len(self._peers) > MAX_PEERS:
            _stop(self._peers.popitem(last=False)[1])
        return peer

    def _record(self, peer: _Peer, name: str) -> _Record:
        return peer.record_by_way.setdefault(name, _Record())

    async def _choose(self, peer: _Peer, receiver: Epoch) -> str:
        """Raises NoTransport, or what keeps the peer from being met."""
        if not peer.is_met and SAFE in self._ways:
            return SAFE
        await self._meet_once(peer, receiver)
        self._check_met(peer)
        chosen = _best(peer.record_by_way, self._clock(), SAFE if SAFE in self._ways else "")
        if chosen != peer.chosen:
            log.info("KV from %s comes by %s", peer.address, chosen)
            peer.chosen = chosen
        return chosen

    def _check_met(self, peer: _Peer) -> None:
        if peer.why_not:
            self.num_refused += 1
            log.error("%s", peer.why_not)
            raise NoTransport(peer.why_not)

    async def _meet_once(self, peer: _Peer, receiver: Epoch) -> None:
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

    async def _meet(self, peer: _Peer, receiver: Epoch) -> None:
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
            self._record(peer, name)
        peer.record_by_way = {name: peer.record_by_way[name] for name in fitting}
        peer.is_met, peer.theirs = True, theirs
        if not fitting:
            peer.why_not = (
                f"nothing that is required ({', '.join(self._require) or 'of all'}) leads to "
                f"{peer.address}, which sends by {', '.join(theirs.names)}"
            )

    def _note_cut(self, peer: _Peer, name: str, error: TransferCut) -> None:
        record = self._record(peer, name)
        record.num_cuts += 1
        has_failed = isinstance(error, TransportFailed) or record.num_cuts >= MAX_CUTS
        if not has_failed or name == SAFE:
            return
        record.num_cuts = 0
        record.demoted_until, record.reason = self._clock() + DEMOTED_S, str(error)
        self.num_demotions[name] += 1
        log.warning("no KV by %s from %s for %g s: %s", name, peer.address, DEMOTED_S, error)

    def _learn(self, peer: _Peer, receiver: Epoch) -> None:
        """Measure the ways to this peer behind everybody's back, if that has yet to be done."""
        is_known = self._peers.get(peer.address) is peer
        if is_known and peer.measuring is None and self._clock() >= peer.measured_until:
            peer.measuring = asyncio.create_task(self._measure(peer, receiver))

    async def _measure(self, peer: _Peer, receiver: Epoch) -> None:
        try:
            await self._meet_once(peer, receiver)
        except TransferError as error:
            log.info("the ways to %s are not known: %s", peer.address, error)
        for name, record in list(peer.record_by_way.items()):  # a stream may add to them
            if record.measured is None:
                async with self._one_at_a_time:
                    await self._measure_way(peer, name, receiver)
        if not peer.is_met or any(way.measured is None for way in peer.record_by_way.values()):
            peer.measured_until = self._clock() + (UNMEASURED_S if peer.is_met else 0.0)
            peer.measuring = None  # again, at the end of some later stream

    async def _measure_way(self, peer: _Peer, name: str, receiver: Epoch) -> None:
        record, transport = peer.record_by_way[name], self._ways[name].transport()
        elsewhere = self._measured_elsewhere(peer, name)
        try:
            for num_bytes in PROBE_BYTES if elsewhere is None else PROBE_BYTES[:1]:
                measured = await self._prober.measure(
                    transport, peer.address, peer.epoch, receiver, num_bytes
                )
            record.measured, record.reason = elsewhere or measured, ""
            if elsewhere is None:
                self._share(peer, name, measured)
        except TransferError as error:
            record.reason = f"could not be measured: {error}"
            log.info("%s from %s %s", name, peer.address, record.reason)

    def _measured_elsewhere(self, peer: _Peer, name: str) -> ProbeRound | None:
        """Recent measurement of this transport from another peer of the same host."""
        if peer.theirs is None or not peer.theirs.host:
            return None
        measured, at = self._shared.get((peer.theirs, name), (None, 0.0))
        return measured if self._clock() < at + SHARED_S else None

    def _share(self, peer: _Peer, name: str, measured: ProbeRound) -> None:
        if peer.theirs is None:
            return
        self._shared[peer.theirs, name] = measured, self._clock()
        self._shared.move_to_end((peer.theirs, name))
        if len(self._shared) > MAX_PEERS * len(self._ways):
            self._shared.popitem(last=False)


def _best(record_by_way: Mapping[str, _Record], now: float, safe: str) -> str:
    """The fastest, of what works at present; if nothing does, what has rested longest."""
    working = {name: way for name, way in record_by_way.items() if way.demoted_until <= now}
    if not working:
        return min(record_by_way, key=lambda name: record_by_way[name].demoted_until)
    rates = {name: way.measured.bytes_per_s for name, way in working.items() if way.measured}
    if not rates:
        return safe if safe in working else next(iter(working))
    fastest = max(rates.values())
    return next(name for name, rate in rates.items() if rate >= ABOUT_EQUAL * fastest)


def _tasks_of(peer: _Peer) -> list[asyncio.Task[None]]:
    return [task for task in (peer.meeting, peer.measuring) if task is not None]


def _stop(peer: _Peer | None) -> None:
    for task in _tasks_of(peer) if peer is not None else ():
        task.cancel()


_NOBODY = Facts(names=(), host="", device="")


class AutoSending:
    """P's half: tells what this replica sends by. No piece is ever packed by it."""

    max_piece_bytes = 0
    carry = None
    reads_in_place = False

    def __init__(self, facts: Facts) -> None:
        self._facts = facts

    async def pack(self, piece: LentPiece, request: OpenTransfer) -> Parcel:
        raise TransportFailed("`auto` stands for other transports, and carries nothing itself")

    async def meet(self, receiver_epoch: Epoch, payload: bytes) -> bytes:
        return msgspec.msgpack.encode(self._facts)

    async def close(self) -> None:
        """It holds nothing."""
