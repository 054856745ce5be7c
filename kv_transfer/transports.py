"""The transports, by the name used in configuration and receipts.

A transport is one file with two halves, and one line here. The best comes first: of transports that
are about equally fast `auto` takes the earlier one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec

import torch

from baton.core.errors import InvalidConfig
from baton.core.kv_arena import Introduce, KvArena
from baton.kv_transfer.handoff.transport import SendingHalf, Transport
from baton.kv_transfer.transport.auto.auto import AutoSending, AutoTransport, TransportOption
from baton.kv_transfer.transport.auto.known_peers import Facts, WayReport
from baton.kv_transfer.transport.collective.collective import CollectiveSending, CollectiveTransport
from baton.kv_transfer.transport.control.client import ControlClient
from baton.kv_transfer.transport.grpc import GrpcSending, GrpcTransport
from baton.kv_transfer.transport.memory import MemoryTransport, Switchboard
from baton.kv_transfer.transport.nixl.buffers import MAX_BUFFER_BYTES
from baton.kv_transfer.transport.nixl.nixl import NixlTransport
from baton.kv_transfer.transport.nixl.sending import NixlSending, RegisteredMemory
from baton.kv_transfer.transport.shm import ShmSending, ShmTransport, this_host
from baton.kv_transfer.transport.tcp.tcp import TcpSending, TcpTransport
from baton.proto.channels import Channels

AUTO = "auto"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportParts:
    """What a process can give its transports to work with."""

    switchboard: Switchboard = field(default_factory=Switchboard)
    """Shared by the replicas of one process."""
    channels: Channels = field(default_factory=Channels)
    device: str = "cpu"
    """Where this replica's KV lies, as torch names it."""
    arena: KvArena | None = None
    """The memory that it lies in."""
    require: tuple[str, ...] = ()
    """What `auto` may choose from; empty: everything."""


Fits = Callable[[TransportParts, str, Facts], bool]
"""Whether it could lead to the peer at this address that says these things of itself."""


def _always(parts: TransportParts, address: str, theirs: Facts) -> bool:
    return True


def _on_cpus(parts: TransportParts, address: str, theirs: Facts) -> bool:
    return parts.device == theirs.device == "cpu"


@dataclass(frozen=True, slots=True)
class TransportKind:
    receiving: Callable[[TransportParts], Transport]
    sending: Callable[[TransportParts, KvArena], SendingHalf] | None = None
    """None: its pieces are not announced on the control stream."""
    fits: Fits = _always
    lacks: Callable[[], str] = str
    """What this machine would need for it; empty where it has everything."""
    reads_arena: bool = False
    """Rather than block by block: the sender's must not be in pieces, as those of ranks are,
    unless it `reads_shares`."""
    reads_shares: bool = False
    """It reads each piece where the rank that keeps it has it."""
    registering: Callable[[], Introduce] | None = None
    """How a rank on a GPU that follows a lead registers its own memory for it."""
    buffer_bytes: int = 0
    """The most that KV which comes so takes of the device where it goes, beside the cache."""


TRANSPORTS: Mapping[str, TransportKind] = {
    "memory": TransportKind(
        lambda parts: MemoryTransport(parts.switchboard),
        fits=lambda parts, address, theirs: parts.switchboard.has(address),
    ),
    "shm": TransportKind(
        lambda parts: ShmTransport(ControlClient(parts.channels)),
        lambda parts, arena: ShmSending(arena),
        lambda parts, address, theirs: theirs.host == this_host() and theirs.device == "cpu",
        reads_arena=True,
        reads_shares=True,
    ),
    "nccl": TransportKind(
        lambda parts: CollectiveTransport("nccl", ControlClient(parts.channels)),
        lambda parts, arena: CollectiveSending("nccl", arena),
        lambda parts, address, theirs: "cpu" not in (parts.device, theirs.device),
        lambda: "" if torch.cuda.is_available() else "a CUDA device",
        reads_arena=True,
    ),
    "nixl": TransportKind(
        lambda parts: NixlTransport(
            ControlClient(parts.channels), device=parts.device, arena=parts.arena
        ),
        lambda parts, arena: NixlSending(arena),
        lacks=lambda: "" if find_spec("nixl") else "NIXL: pip install 'baton-llm[nixl]'",
        reads_arena=True,
        reads_shares=True,
        registering=lambda: RegisteredMemory().introduce,
        buffer_bytes=MAX_BUFFER_BYTES,
    ),
    "tcp": TransportKind(
        lambda parts: TcpTransport(ControlClient(parts.channels)),
        lambda parts, arena: TcpSending(parts.channels.security),
    ),
    "gloo": TransportKind(
        lambda parts: CollectiveTransport("gloo", ControlClient(parts.channels)),
        lambda parts, arena: CollectiveSending("gloo", arena),
        _on_cpus,
    ),
    "grpc": TransportKind(
        lambda parts: GrpcTransport(ControlClient(parts.channels)),
        lambda parts, arena: GrpcSending(),
    ),
}


class Transports:
    """The receiving halves of one replica, each made when it is first asked for."""

    def __init__(self, parts: TransportParts) -> None:
        self._parts = parts
        self._transport_by_name: dict[str, Transport] = {}

    def get(self, name: str) -> Transport:
        """Raises InvalidConfig for a name that is not registered."""
        transport = self._transport_by_name.get(name)
        if transport is None:
            transport = self._transport_by_name[name] = self._create(name)
        return transport

    def ways(self) -> list[WayReport]:
        """What `auto` knows of the ways to its peers, if it was asked for."""
        found = self._transport_by_name.get(AUTO)
        return found.ways() if isinstance(found, AutoTransport) else []

    def metrics(self) -> dict[str, float]:
        """Metrics by Prometheus name."""
        found = self._transport_by_name.get(AUTO)
        return found.metrics() if isinstance(found, AutoTransport) else {}

    async def close(self) -> None:
        transports, self._transport_by_name = self._transport_by_name, {}
        for transport in reversed(transports.values()):
            await transport.close()

    def _create(self, name: str) -> Transport:
        if name == AUTO:
            return self._auto()
        if name not in TRANSPORTS:
            known = ", ".join((AUTO, *TRANSPORTS))
            raise InvalidConfig(f"no KV transport is called {name!r}; there are {known}")
        if what := TRANSPORTS[name].lacks():
            raise InvalidConfig(f"the KV transport {name!r} needs {what}")
        return TRANSPORTS[name].receiving(self._parts)

    def _auto(self) -> AutoTransport:
        unknown = [name for name in self._parts.require if name not in TRANSPORTS]
        if unknown:
            raise InvalidConfig(
                f"transfer.require: no KV transport is called {unknown[0]!r}; "
                f"there are {', '.join(TRANSPORTS)}"
            )
        ways = {name: self._way(name, kind) for name, kind in TRANSPORTS.items()}
        control = ControlClient(self._parts.channels)
        return AutoTransport(ways, control, require=self._parts.require)

    def _way(self, name: str, kind: TransportKind) -> TransportOption:
        parts, security = self._parts, self._parts.channels.security

        def fits(address: str, theirs: Facts) -> bool:
            is_sent = kind.sending is None or (name in theirs.names and not kind.lacks())
            return is_sent and security.may_carry_kv(name) and kind.fits(parts, address, theirs)

        return TransportOption(transport=lambda: self.get(name), fits=fits)


def usable_transports() -> list[str]:
    """The names of those for which this machine lacks nothing, best first."""
    return [name for name, kind in TRANSPORTS.items() if not kind.lacks()]


def buffer_bytes(names: Iterable[str]) -> int:
    """The most that any of these takes of a device beside the cache; none that this machine has
    not."""
    kinds = [TRANSPORTS[name] for name in names]
    return max((kind.buffer_bytes for kind in kinds if not kind.lacks()), default=0)


def registering(names: Iterable[str]) -> Introduce | None:
    """How a rank on a GPU that follows a lead registers its own memory, for the one of these
    transports that needs it; None if this machine has none that does. What is registered lasts as
    long as what this returns."""
    for kind in (TRANSPORTS[name] for name in names):
        if kind.registering is not None and not kind.lacks():
            return kind.registering()
    return None


def create_transport(name: str, parts: TransportParts) -> Transport:
    """One of the transports. Raises InvalidConfig for an unknown name."""
    return Transports(parts).get(name)


def create_sending_halves(parts: TransportParts, arena: KvArena) -> dict[str, SendingHalf]:
    """P's half of every transport that has one, and can carry what is in this arena."""
    halves = {
        name: kind.sending(parts, arena)
        for name, kind in TRANSPORTS.items()
        if kind.sending is not None and not kind.lacks() and _can_send(kind, arena)
    }
    facts = Facts(names=tuple(halves), host=this_host(), device=arena.device)
    return {**halves, AUTO: AutoSending(facts)}


def _can_send(kind: TransportKind, arena: KvArena) -> bool:
    return not kind.reads_arena or arena.is_whole or (kind.reads_shares and bool(arena.shares))
