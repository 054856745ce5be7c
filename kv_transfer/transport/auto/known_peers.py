"""What is known of the ways to each peer: which could work, how fast they are, which are demoted.

All of it belongs to one incarnation of a peer, but for what was measured: that holds, for a while,
for all peers of its host that describe themselves alike.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

import msgspec

from baton.core.clock import Clock
from baton.core.ids import Epoch
from baton.kv_transfer.transport.auto.probe import ProbeRound

ABOUT_EQUAL = 0.6
"""A way with this share of the fastest one's rate is as good. One short probe each, on a machine
that does other things as well, tells no finer than that."""
MAX_PEERS = 256
SHARED_S = 600.0
"""Seconds for which what was measured of one peer holds for others of its host."""


class Facts(msgspec.Struct, frozen=True):
    """What a peer must be known by to tell which ways could lead to it."""

    names: tuple[str, ...]
    """Names of the transports it sends by."""
    host: str
    device: str


@dataclass(slots=True)
class Way:
    """What is known of one transport to one peer."""

    measured: ProbeRound | None = None
    num_cuts: int = 0
    demoted_until: float = 0.0
    reason: str = ""
    """Why it was demoted, or could not be measured."""


@dataclass(slots=True, eq=False)
class Peer:
    address: str
    epoch: Epoch
    way_by_name: dict[str, Way] = field(default_factory=dict)
    """The ways that could work; best by name first. Empty before the peer was met."""
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

    def way(self, name: str) -> Way:
        return self.way_by_name.setdefault(name, Way())

    @property
    def tasks(self) -> list[asyncio.Task[None]]:
        return [task for task in (self.meeting, self.measuring) if task is not None]

    def stop(self) -> None:
        for task in self.tasks:
            task.cancel()


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


class KnownPeers:
    """The peers used last, one for each address."""

    def __init__(self) -> None:
        self._by_address: OrderedDict[str, Peer] = OrderedDict()

    def __iter__(self) -> Iterator[Peer]:
        return iter(self._by_address.values())

    def has(self, peer: Peer) -> bool:
        return self._by_address.get(peer.address) is peer

    def at(self, address: str, epoch: Epoch) -> Peer:
        """The peer of that incarnation; an earlier one at that address is forgotten."""
        peer = self._by_address.get(address)
        if peer is None or peer.epoch != epoch:
            if peer is not None:
                peer.stop()
            peer = self._by_address[address] = Peer(address, epoch)
        self._by_address.move_to_end(address)
        while len(self._by_address) > MAX_PEERS:
            self._by_address.popitem(last=False)[1].stop()
        return peer

    def clear(self) -> None:
        self._by_address.clear()

    def reports(self, now: float) -> list[WayReport]:
        return [
            WayReport(
                address=peer.address,
                epoch=peer.epoch,
                name=name,
                is_chosen=name == peer.chosen,
                bytes_per_s=way.measured.bytes_per_s if way.measured else None,
                latency_s=way.measured.latency_s if way.measured else None,
                is_demoted=way.demoted_until > now,
                reason=way.reason,
            )
            for peer in self
            for name, way in peer.way_by_name.items()
        ]


class SharedMeasurements:
    """What was measured of peers, for others of the same host that describe themselves alike."""

    def __init__(self, clock: Clock, max_kept: int) -> None:
        self._clock = clock
        self._max_kept = max_kept
        self._found: OrderedDict[tuple[Facts, str], tuple[ProbeRound, float]] = OrderedDict()
        """Measurements and their times, by the facts of peers and by transport."""

    def of(self, peer: Peer, name: str) -> ProbeRound | None:
        """A recent measurement of this transport from a peer like that."""
        if peer.theirs is None or not peer.theirs.host:
            return None
        measured, at = self._found.get((peer.theirs, name), (None, 0.0))
        return measured if self._clock() < at + SHARED_S else None

    def add(self, peer: Peer, name: str, measured: ProbeRound) -> None:
        if peer.theirs is None:
            return
        self._found[peer.theirs, name] = measured, self._clock()
        self._found.move_to_end((peer.theirs, name))
        if len(self._found) > self._max_kept:
            self._found.popitem(last=False)


def best(way_by_name: Mapping[str, Way], now: float, safe: str) -> str:
    """The fastest, of what works at present; if nothing does, what has rested longest. `safe`,
    where it works, before anything is measured."""
    working = {name: way for name, way in way_by_name.items() if way.demoted_until <= now}
    if not working:
        return min(way_by_name, key=lambda name: way_by_name[name].demoted_until)
    rates = {name: way.measured.bytes_per_s for name, way in working.items() if way.measured}
    if not rates:
        return safe if safe in working else next(iter(working))
    fastest = max(rates.values())
    return next(name for name, rate in rates.items() if rate >= ABOUT_EQUAL * fastest)
