"""The transports there are, by the name used in configuration and receipts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from baton.core.errors import InvalidConfig
from baton.kv_transfer.transport.base import Transport
from baton.kv_transfer.transport.grpc import GrpcTransport
from baton.kv_transfer.transport.memory import MemoryTransport, Switchboard


@dataclass(frozen=True, slots=True, kw_only=True)
class TransportParts:
    """What a process can give its transports to work with."""

    switchboard: Switchboard = field(default_factory=Switchboard)
    """Shared by the replicas of one process."""


TRANSPORTS: Mapping[str, Callable[[TransportParts], Transport]] = {
    "memory": lambda parts: MemoryTransport(parts.switchboard),
    "grpc": lambda parts: GrpcTransport(),
}


def create_transport(name: str, parts: TransportParts) -> Transport:
    """Raises InvalidConfig for a name that is not registered."""
    try:
        factory = TRANSPORTS[name]
    except KeyError:
        known = ", ".join(TRANSPORTS)
        raise InvalidConfig(f"no KV transport is called {name!r}; there are {known}") from None
    return factory(parts)
