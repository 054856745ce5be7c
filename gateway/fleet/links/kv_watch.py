"""Keeps the gateway's index in step with one replica's prefix cache.

    run()    the link is there; watch: snapshot, events ...; after a gap or a break: wait a little,
             watch anew

`on_learnt` is called with each part of the first snapshot, and whether it is the last; it is also
called as for the last if no part will come. While the stream is away the index keeps what it knew,
and the next snapshot corrects it.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

import grpc
import grpc.aio

from baton.core.kv_events import KvEvents
from baton.core.replicas import ReplicaInfo
from baton.gateway.fleet.links.kept_stream import jittered
from baton.gateway.fleet.links.opening_slots import SNAPSHOT_TURN_S, OpeningSlot, OpeningSlots
from baton.proto import replica_pb2 as pb
from baton.proto.channels import explain
from baton.proto.kv_events_wire import kv_events_from_proto
from baton.proto.one_call import one_call
from baton.proto.replica_pb2_grpc import ReplicaStub
from baton.router.cache.kv_index import KvGap, KvIndex

log = logging.getLogger(__name__)

OnLearnt = Callable[[bool], None]

MIN_RETRY_S = 0.2
MAX_RETRY_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class KvKnowledge:
    """How well a gateway follows the prefix cache of one replica."""

    num_blocks: int = 0
    """Blocks of the replica in this gateway's index."""
    num_events: int = 0
    """Events applied so far."""
    num_gaps: int = 0
    """Times that events were missing."""
    num_resyncs: int = 0
    """Snapshots taken after the first: because of a gap, or because the stream was away."""
    is_synced: bool = False
    """Whether the index follows the replica at this moment."""


class Snapshots:
    """Shared by all watches of a gateway, so that many snapshots at once do not block its event
    loop."""

    def __init__(self) -> None:
        self.opening = OpeningSlots(SNAPSHOT_TURN_S)
        self.entering = asyncio.Lock()
        """Held while one part is entered into the index; between parts the loop does other work."""


class KvWatch:
    """Follows one replica's prefix cache, over the channel of its link, which outlives the
    watch."""

    def __init__(  # noqa: PLR0913 - what it follows, what it notifies, and how both are reached
        self,
        info: ReplicaInfo,
        index: KvIndex,
        channel: grpc.aio.Channel,
        on_learnt: OnLearnt,
        until_connected: Callable[[], Awaitable[None]],
        snapshots: Snapshots | None = None,
        *,
        is_secured: bool = False,
    ) -> None:
        self.num_events = self.num_gaps = self.num_resyncs = 0
        self.is_synced = False
        self._on_learnt: OnLearnt | None = on_learnt
        """None once the first snapshot is complete."""
        self._info = info
        self._index = index
        self._has_snapshot = False
        self._channel = channel
        self._until_connected = until_connected
        self._snapshots = snapshots or Snapshots()
        self._is_secured = is_secured
        self._turn: OpeningSlot | None = None
        """The turn to take a snapshot."""
        self._pump = asyncio.create_task(self._run(), name=f"KV events of {info.replica_id}")

    @property
    def knowledge(self) -> KvKnowledge:
        return KvKnowledge(
            num_blocks=self._index.num_blocks(self._info.epoch),
            num_events=self.num_events,
            num_gaps=self.num_gaps,
            num_resyncs=self.num_resyncs,
            is_synced=self.is_synced,
        )

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    async def _run(self) -> None:
        retry_s = MIN_RETRY_S
        while True:
            await self._until_connected()
            self._turn = turn = await self._snapshots.opening.turn()
            try:
                reason = await self._follow()
            finally:
                turn.end()
            self._learn(is_all=True)
            if self.is_synced:
                self.is_synced, retry_s = False, MIN_RETRY_S
            log.info("the KV events of %s broke off: %s", self._info.replica_id, reason)
            await asyncio.sleep(jittered(retry_s))
            retry_s = min(2 * retry_s, MAX_RETRY_S)

    async def _follow(self) -> str:
        """Follow until the stream breaks off, and say why it did."""
        watch_kv = one_call(ReplicaStub, "WatchKv", self._channel)
        call = watch_kv(pb.WatchKvRequest(epoch=self._info.epoch))
        try:
            while await self._take_next(call):
                pass
        except KvGap as gap:
            self.num_gaps += 1
            return str(gap)
        except grpc.aio.AioRpcError as error:
            return explain(error, is_secured=self._is_secured)
        except Exception as error:  # a watch that stops would leave a stale index for ever
            log.exception("the KV events of %s cannot be followed", self._info.replica_id)
            return f"{type(error).__name__}: {error}"
        finally:
            call.cancel()
            self._index.break_off(self._info.epoch)
        return "the replica ended the stream"

    async def _take_next(self, call: grpc.aio.UnaryStreamCall[Any, pb.KvEvents]) -> bool:
        """Handle one message; False at the end. The message is freed before the next is awaited,
        which `async for` would not do: the last parts of a thousand snapshots take 60 MB and
        more."""
        message = await call.read()
        if not isinstance(message, pb.KvEvents):  # grpc.aio.EOF
            return False
        events = kv_events_from_proto(message)
        if events.is_snapshot:
            async with self._snapshots.entering:
                self._receive(events)
                await asyncio.sleep(0)
        else:
            self._receive(events)
        return True

    def _receive(self, events: KvEvents) -> None:
        self._index.apply(self._info.epoch, events)
        if not events.is_snapshot:
            self.num_events += len(events.events)
        elif not events.has_more:
            self.num_resyncs += self._has_snapshot
            self._has_snapshot = self.is_synced = True
            if self._turn is not None:
                self._turn.end()
        self._learn(is_all=self._has_snapshot)

    def _learn(self, *, is_all: bool) -> None:
        on_learnt = self._on_learnt
        if on_learnt is None:
            return
        if is_all:
            self._on_learnt = None
        try:
            on_learnt(is_all)
        except Exception:
            log.exception("what hangs on the KV events of %s failed", self._info.replica_id)
