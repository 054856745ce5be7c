"""The measured KV transports between replicas, by pair. Pure.

prefill-1 -> decode-1, in GB/s
transport  first piece  64 KiB  4 MiB  taken, or why not
shm        0.4 ms       1.1     5.2    by auto: the fastest
grpc       0.9 ms       0.2     1.1
gloo       -            -       -      nothing listens there
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import median

from baton.core.ids import Epoch, ReplicaId
from baton.core.replicas import Role
from baton.platform.doctor.finding import Finding, Status, skipped


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveReplica:
    replica_id: ReplicaId
    role: Role
    epoch: Epoch
    address: str


Pair = tuple[LiveReplica, LiveReplica]
"""The receiver, then the sender."""

MAX_PAIRS = 100
"""The default limit of measured pairs, for minutes rather than days on a large fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The measured rounds of one transfer size."""

    num_bytes: int
    rounds_s: tuple[float, ...]

    @property
    def bytes_per_s(self) -> float:
        return self.num_bytes / max(median(self.rounds_s), 1e-9)


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportMeasurement:
    """One transport from one sender to one receiver."""

    receiver: ReplicaId
    sender: ReplicaId
    transport: str
    latency_s: float | None = None
    """Seconds until the first piece of a small transfer."""
    sizes: tuple[Size, ...] = ()
    error: str = ""
    """Why it could not be measured completely."""
    chosen: str = ""
    """Why KV uses this transport; empty: it uses another, or none yet."""

    @property
    def works(self) -> bool:
        return bool(self.sizes) and not self.error

    @property
    def bytes_per_s(self) -> float:
        """The rate of the largest transfers, for long prompts."""
        return self.sizes[-1].bytes_per_s if self.works else 0.0


def pairs_of(replicas: Sequence[LiveReplica]) -> list[Pair]:
    """Pairs between which KV travels: prefill to decode, and decode to decode for moves."""
    return [
        (receiver, sender)
        for receiver in replicas
        if receiver.role is Role.DECODE
        for sender in replicas
        if sender is not receiver
    ]


def sampled(pairs: Sequence[Pair], num_pairs: int, random: Random) -> list[Pair]:
    """`num_pairs` random pairs that cover as many replicas as possible."""
    left = random.sample(pairs, len(pairs))
    chosen: list[Pair] = []
    seen: set[Epoch] = set()
    for num_new in (2, 1, 0):  # replicas of the pair that no chosen pair has
        passed_over: list[Pair] = []
        for pair in left:
            new = {replica.epoch for replica in pair} - seen
            if len(chosen) < num_pairs and len(new) >= num_new:
                seen |= new
                chosen.append(pair)
            else:
                passed_over.append(pair)
        left = passed_over
    return chosen


def check_sample(pairs: Sequence[Pair], chosen: Sequence[Pair]) -> Finding:
    """A finding about how much of the fleet was measured."""
    num_replicas = len({replica.epoch for pair in pairs for replica in pair})
    num_chosen = len({replica.epoch for pair in chosen for replica in pair})
    return skipped(
        "pairs measured",
        f"{len(chosen):,} of {len(pairs):,}, drawn at random, with {num_chosen:,} of "
        f"{num_replicas:,} replicas among them",
        "`--sample` with a larger number measures more of them",
    )


def check_ways(ways: Sequence[TransportMeasurement], required: Sequence[str]) -> list[Finding]:
    """One finding per pair. With `required`, one of these transports must work; else any."""
    by_pair: dict[tuple[ReplicaId, ReplicaId], list[TransportMeasurement]] = {}
    for way in ways:
        by_pair.setdefault((way.receiver, way.sender), []).append(way)
    return [
        _check_pair(f"{sender} -> {receiver}", found, required)
        for (receiver, sender), found in by_pair.items()
    ]


def _check_pair(
    where: str, ways: Sequence[TransportMeasurement], required: Sequence[str]
) -> Finding:
    usable = [way for way in ways if not required or way.transport in required]
    working = [way for way in usable if way.works]
    if not working:
        errors = "; ".join(f"{way.transport}: {way.error}" for way in usable)
        wanted = " or ".join(required) or "any transport"
        return Finding(
            name="KV transport",
            status=Status.FAIL,
            seen=f"no way by {wanted}: {errors or 'it is not known here'}",
            remedy="open the network between them, or change transfer.require",
            where=where,
        )
    best = max(working, key=lambda way: way.bytes_per_s)
    others = [f"not {way.transport}: {way.error}" for way in ways if not way.works]
    seen = _speed(best)
    taken = next((way for way in ways if way.chosen), None)
    if taken is not None and taken.works and taken.bytes_per_s < best.bytes_per_s / 2:
        return Finding(
            name="KV transport",
            status=Status.WARN,
            seen=f"{taken.transport} is taken ({taken.chosen}), though {seen}",
            remedy="set transfer.transport to auto, or let it measure again: restart the receiver",
            where=where,
        )
    if taken is not None and taken.works and taken is not best:
        seen = f"{_speed(taken)}, which is taken; {seen} at its fastest"
    seen = "; ".join((seen, *others))
    return Finding(name="KV transport", status=Status.OK, seen=seen, where=where)


def _speed(way: TransportMeasurement) -> str:
    return f"{way.transport} {way.bytes_per_s / 1e9:.2f} GB/s"
