"""Fault injection into KV events and heartbeats."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Protocol

from baton.core.chaos import Chaos, Fault
from baton.core.ids import Epoch
from baton.core.kv_events import KvEvents
from baton.core.replicas import HEARTBEAT_S, Membership, ReplicaInfo


async def chaotic_events(
    feed: AsyncGenerator[KvEvents, None], chaos: Chaos
) -> AsyncGenerator[KvEvents, None]:
    """A replica's KV events with injected faults; a cut ends the stream."""
    held: list[KvEvents] = []
    async with aclosing(feed):
        async for events in feed:
            rule = chaos.draw("kv_events")
            overtaken, held = held, []
            match rule.fault if rule else None:
                case Fault.CUT:
                    return
                case Fault.DROP:
                    continue
                case Fault.REORDER if not overtaken:
                    held = [events]
                    continue
                case Fault.DELAY:
                    assert rule is not None
                    await asyncio.sleep(rule.delay_s)
                case Fault.DUPLICATE:
                    yield events
            yield events
            for late in overtaken:
                yield late


class WatchedRegistry(Protocol):
    async def watch(self, incarnation: Epoch | None, version: int) -> Membership: ...


class HeartbeatRegistry(Protocol):
    async def heartbeat(self, info: ReplicaInfo) -> float: ...


class ChaoticWatch:
    """A gateway's watch of the registry with injected faults."""

    def __init__(self, registry: WatchedRegistry, chaos: Chaos) -> None:
        self._registry = registry
        self._chaos = chaos

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        rule = self._chaos.draw("registry.watch")
        if rule is not None and rule.fault is Fault.CUT:
            raise ConnectionError("chaos: the registry is away")
        if rule is not None:
            await asyncio.sleep(rule.delay_s)
        return await self._registry.watch(incarnation, version)


async def heartbeat(registry: HeartbeatRegistry, info: ReplicaInfo, chaos: Chaos | None) -> float:
    """Send a heartbeat, unless a fault drops it. Returns the seconds until the next."""
    rule = chaos.draw("registry.heartbeat") if chaos is not None else None
    match rule.fault if rule else None:
        case Fault.DROP:
            return HEARTBEAT_S
        case Fault.DELAY:
            assert rule is not None
            await asyncio.sleep(rule.delay_s)
        case Fault.DUPLICATE:
            await registry.heartbeat(info)
    return await registry.heartbeat(info)
