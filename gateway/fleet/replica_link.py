"""The one long-lived stream between this gateway and one decode replica.

    run()              connect, greet, pump frames; on a break tell every open attempt, reconnect
    open(request)      an Attempt: its updates, until the last one or ReplicaLost
    attempt.cut_off()  it goes on elsewhere: what it still says here goes unheard
    attempt.close()    takes the request back, if it is not over

All requests of this gateway share the stream; `(request id, attempt)` tells them apart.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TypeGuard

from baton.core.clock import Clock, monotonic
from baton.core.errors import BatonError
from baton.core.ids import Epoch, RequestId
from baton.core.messages import Capacity, Demand, GenerateRequest, ReplicaInfo, TokenUpdate
from baton.gateway.fleet.demand import DemandNews
from baton.gateway.fleet.kept_stream import keep_open, pump_frames
from baton.gateway.fleet.last_word import LastWord
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import DecodeStub
from baton.proto.wire import (
    capacity_from_proto,
    demand_to_proto,
    generate_to_proto,
    update_from_proto,
)


class ReplicaLost(BatonError):
    """The stream to the replica broke; what it was doing must be done elsewhere."""


class Attempt:
    """One request on one replica, seen from the gateway."""

    def __init__(self, link: ReplicaLink, request: GenerateRequest) -> None:
        self.link = link
        self.request = request
        self.is_over = False
        self.is_cut_off = False
        self.on_draining: Callable[[], None] = lambda: None
        """Called when the replica is to become empty. The request goes on until it is cut off."""
        self._updates: deque[TokenUpdate | BatonError] = deque()
        self._has_updates = asyncio.Event()

    @property
    def key(self) -> tuple[RequestId, int]:
        return self.request.request_id, self.request.attempt

    async def next(self) -> TokenUpdate:
        """Raises what `put` was given to raise: ReplicaLost when the stream broke too early."""
        while not self._updates:
            self._has_updates.clear()
            await self._has_updates.wait()
        update = self._updates.popleft()
        if isinstance(update, BatonError):
            raise update
        return update

    def put(self, update: TokenUpdate | BatonError) -> None:
        """What the client has not been given yet when more comes goes to it as one."""
        last = self._updates[-1] if self._updates else None
        if isinstance(last, TokenUpdate) and _can_join(update):
            self._updates[-1] = last.and_then(update)
        else:
            self._updates.append(update)
        self._has_updates.set()

    @property
    def can_move(self) -> bool:
        return self.link.is_connected and not (self.is_over or self.is_cut_off)

    def take_queued(self) -> list[TokenUpdate]:
        """What has come and was not asked for yet, up to the first error."""
        taken: list[TokenUpdate] = []
        while self._updates and isinstance(update := self._updates[0], TokenUpdate):
            taken.append(update)
            self._updates.popleft()
        return taken

    def cut_off(self, reason: BatonError) -> None:
        """What the replica says, or has said, goes unheard: whoever waits hears only this."""
        self.is_cut_off = True
        self._updates.clear()
        self.put(reason)

    def close(self, num_delivered: int) -> None:
        """Safe to repeat. `num_delivered` tokens of this attempt have reached the client."""
        self.link.close_attempt(self, num_delivered)


def _can_join(update: TokenUpdate | BatonError) -> TypeGuard[TokenUpdate]:
    return isinstance(update, TokenUpdate) and update.error is None


class ReplicaLink:
    """Its channel is its own: nobody else's bytes hold up tokens."""

    def __init__(
        self,
        info: ReplicaInfo,
        gateway_epoch: Epoch,
        on_change: Callable[[], None],
        channels: Channels,
        clock: Clock = monotonic,
    ) -> None:
        self.info = info
        self.is_connected = False
        self.last_word = LastWord(clock)
        self.demand = DemandNews(self._send_demand)
        self._gateway_epoch = gateway_epoch
        self._on_change = on_change
        self._attempts: dict[tuple[RequestId, int], Attempt] = {}
        self._outgoing: asyncio.Queue[pb.GatewayFrame] = asyncio.Queue()
        self._channel = channels.new(info.address)
        self._pump = asyncio.create_task(
            keep_open(info.replica_id, self._pump_frames, self._break),
            name=f"link to {info.replica_id}",
        )

    @property
    def capacity(self) -> Capacity | None:
        """None while the stream is away."""
        return self.last_word.capacity

    @property
    def is_draining(self) -> bool:
        return self.capacity is not None and self.capacity.is_draining

    @property
    def num_open(self) -> int:
        return len(self._attempts)

    def open(self, request: GenerateRequest) -> Attempt:
        if not self.is_connected:
            raise ReplicaLost(f"{self.info.replica_id} is not connected")
        frame = pb.GatewayFrame(generate=generate_to_proto(request))
        attempt = Attempt(self, request)
        self._attempts[attempt.key] = attempt
        self._outgoing.put_nowait(frame)
        return attempt

    def close_attempt(self, attempt: Attempt, num_delivered: int) -> None:
        if self._attempts.pop(attempt.key, None) is None:
            return
        if not attempt.is_over and self.is_connected:
            request_id, number = attempt.key
            cancel = pb.Cancel(request_id=request_id, attempt=number, num_delivered=num_delivered)
            self._outgoing.put_nowait(pb.GatewayFrame(cancel=cancel))
        self._on_change()

    async def close(self) -> None:
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)
        self.demand.close()
        self._break("the replica has left")
        await self._channel.close()

    async def _pump_frames(self) -> None:
        self._outgoing = asyncio.Queue()
        self.demand.restart()
        call = DecodeStub(self._channel).Session(wait_for_ready=False)
        hello = pb.Hello(gateway_epoch=self._gateway_epoch, replica_epoch=self.info.epoch)
        await pump_frames(call, hello, self._outgoing, self._receive)

    def _send_demand(self, demand: Demand) -> None:
        self._outgoing.put_nowait(pb.GatewayFrame(demand=demand_to_proto(demand)))

    def _receive(self, frame: pb.DecodeFrame) -> None:
        for message in frame.updates:
            attempt = self._attempts.get((RequestId(message.request_id), message.attempt))
            if attempt is None:
                continue  # taken back meanwhile, or fenced: nobody waits for it
            update = update_from_proto(message)
            attempt.is_over = update.is_last
            if not attempt.is_cut_off:
                attempt.put(update)
        if frame.HasField("capacity"):
            was_draining = self.is_draining
            capacity = self.last_word.hear(capacity_from_proto(frame.capacity))
            self.is_connected = True  # the first frame answers our Hello
            self.demand.go_by(capacity.credit_id)
            if self.is_draining and not was_draining:
                for attempt in tuple(self._attempts.values()):
                    attempt.on_draining()
            self._on_change()

    def _break(self, reason: str) -> None:
        self.is_connected = False
        self.last_word.forget()
        lost, self._attempts = self._attempts, {}
        for attempt in lost.values():
            if attempt.is_over or attempt.is_cut_off:
                continue
            attempt.is_over = True
            attempt.put(ReplicaLost(f"decode replica {self.info.replica_id} was lost: {reason}"))
        self._on_change()
