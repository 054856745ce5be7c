"""The gateway's link to one decode replica, shared by all its requests there.

    open(request)      an Attempt: its updates, until the last one or ReplicaLost
    attempt.cut_off()  the request continues elsewhere: later updates from here are ignored
    attempt.close()    cancels the request, if it is not over

`(request id, attempt)` identifies an attempt. If the link breaks, every open attempt fails with
ReplicaLost; if the replica drains or falls silent, attempts are asked to move elsewhere.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from typing import TypeGuard

import grpc
import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.errors import BatonError, Unavailable
from baton.core.ids import Epoch, RequestId
from baton.core.messages import GenerateRequest, ParkedStream, TokenUpdate
from baton.core.parking import TakeStream
from baton.core.replicas import ReplicaInfo
from baton.gateway.fleet.links.opening_slots import OpeningSlots
from baton.gateway.fleet.links.replica_link import Listener, ReplicaLink
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.generate_wire import generate_to_proto, parked_from_proto, take_to_proto
from baton.proto.replica_pb2_grpc import DecodeStub
from baton.proto.token_update_wire import update_from_proto

log = logging.getLogger(__name__)

TAKE_TIMEOUT_S = 2.0
KNOWS_NOTHING = (grpc.StatusCode.NOT_FOUND, grpc.StatusCode.UNIMPLEMENTED)
"""Status codes of a replica that does not have the stream, or is too old to keep streams."""


class ReplicaLost(BatonError):
    """The stream to the replica broke: its requests must be computed elsewhere."""


class Attempt:
    """One request on one replica, seen from the gateway."""

    def __init__(self, link: DecodeLink, request: GenerateRequest) -> None:
        self.link = link
        self.request = request
        self.is_over = False
        self.is_cut_off = False
        self.on_leaving: Callable[[], None] = lambda: None
        """Called when it should move elsewhere. It continues here until it is cut off."""
        self._updates: deque[TokenUpdate | BatonError] = deque()
        self._has_updates = asyncio.Event()

    @property
    def key(self) -> tuple[RequestId, int]:
        return self.request.request_id, self.request.attempt

    async def next(self) -> TokenUpdate:
        """The next update. Raises the error that `put` was given, such as ReplicaLost."""
        while not self._updates:
            self._has_updates.clear()
            await self._has_updates.wait()
        update = self._updates.popleft()
        if isinstance(update, BatonError):
            raise update
        return update

    def put(self, update: TokenUpdate | BatonError) -> None:
        """Queue an update, merged with those that the reader has not taken yet."""
        last = self._updates[-1] if self._updates else None
        if isinstance(last, TokenUpdate) and _can_join(update):
            self._updates[-1] = last.and_then(update)
        else:
            self._updates.append(update)
        self._has_updates.set()

    @property
    def can_move(self) -> bool:
        link = self.link
        should_leave = link.is_connected and (link.is_draining or link.is_silent)
        return should_leave and not (self.is_over or self.is_cut_off)

    def take_queued(self) -> list[TokenUpdate]:
        """Take the queued updates, up to the first error."""
        taken: list[TokenUpdate] = []
        while self._updates and isinstance(update := self._updates[0], TokenUpdate):
            taken.append(update)
            self._updates.popleft()
        return taken

    def cut_off(self, reason: BatonError) -> None:
        """Drop queued and later updates; the reader receives only `reason`."""
        self.is_cut_off = True
        self._updates.clear()
        self.put(reason)

    def close(self, num_delivered: int, *, is_finished: bool = False) -> None:
        """Safe to repeat. The client has `num_delivered` tokens of this attempt. `is_finished`: it
        needs no more, but may resume its stream for some of them."""
        self.link.close_attempt(self, num_delivered, is_finished=is_finished)


def _can_join(update: TokenUpdate | BatonError) -> TypeGuard[TokenUpdate]:
    return isinstance(update, TokenUpdate) and update.error is None


class DecodeLink(ReplicaLink[pb.DecodeFrame]):
    service = DecodeStub

    def __init__(
        self,
        info: ReplicaInfo,
        gateway_epoch: Epoch,
        listener: Listener,
        channels: Channels,
        clock: Clock = monotonic,
        opening: OpeningSlots | None = None,
    ) -> None:
        super().__init__(info, gateway_epoch, listener, channels, clock, opening)
        self._attempts: dict[tuple[RequestId, int], Attempt] = {}
        self.is_leaving = False
        """The gateway is stopping: resumable streams stay parked at the replica when the link
        breaks."""

    @property
    def num_open(self) -> int:
        return len(self._attempts)

    def open(self, request: GenerateRequest) -> Attempt:
        if not self.is_connected:
            raise ReplicaLost(f"{self.info.replica_id} is not connected")
        frame = pb.GatewayFrame(generate=generate_to_proto(request))
        attempt = Attempt(self, request)
        self._attempts[attempt.key] = attempt
        self._await_attempts()
        self._outgoing.put_nowait(frame)
        return attempt

    async def take_stream(self, wanted: TakeStream) -> ParkedStream | None:
        """The parked stream; None if the replica does not have it, or not in a readable version.
        Raises Unavailable if it cannot be asked."""
        request = take_to_proto(wanted)
        try:
            found = await DecodeStub(self.channel).TakeStream(request, timeout=TAKE_TIMEOUT_S)
            return parked_from_proto(found)
        except grpc.aio.AioRpcError as error:
            if error.code() not in KNOWS_NOTHING:
                raise self._not_asked(error) from error
        except grpc.aio.UsageError as error:  # the channel is closed
            raise self._not_asked(error) from error
        except asyncio.CancelledError as error:  # by us, or because the channel was closed
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise self._not_asked(error) from error
        except BatonError as error:  # parked by a newer gateway, in an unknown version
            log.warning("%s knows a stream that cannot be read: %s", self.info.replica_id, error)
        return None

    def _not_asked(self, error: BaseException) -> Unavailable:
        log.warning("%s was not asked for a stream: %r", self.info.replica_id, error)
        return Unavailable(
            f"the stream was not found, but {self.info.replica_id} cannot be asked now; try again"
        )

    def close_attempt(self, attempt: Attempt, num_delivered: int, *, is_finished: bool) -> None:
        if self._attempts.pop(attempt.key, None) is None:
            return
        is_left = self.is_leaving and attempt.request.parking is not None
        if not (attempt.is_over or is_left) and self.is_connected:
            request_id, number = attempt.key
            cancel = pb.Cancel(
                request_id=request_id,
                attempt=number,
                num_delivered=num_delivered,
                is_finished=is_finished,
            )
            self._outgoing.put_nowait(pb.GatewayFrame(cancel=cancel))
        self._await_attempts()
        self._on_change()

    def _receive(self, frame: pb.DecodeFrame) -> None:
        for message in frame.updates:
            attempt = self._attempts.get((RequestId(message.request_id), message.attempt))
            if attempt is None:
                continue  # cancelled or fenced meanwhile
            update = update_from_proto(message)
            attempt.is_over = update.is_last
            if not attempt.is_cut_off:
                attempt.put(update)
        if frame.HasField("capacity"):
            self._receive_capacity(frame.capacity)

    def _receive_change(self, message: pb.Capacity) -> None:
        was_draining = self.is_draining
        super()._receive_change(message)
        if self.is_draining and not was_draining:
            self._ask_to_leave()

    def _on_pulse(self) -> None:
        if self.is_silent:
            self._ask_to_leave()
        super()._on_pulse()

    def _ask_to_leave(self) -> None:
        for attempt in tuple(self._attempts.values()):
            attempt.on_leaving()

    def _break(self, reason: str) -> None:
        self.capacity_report.forget()
        lost, self._attempts = self._attempts, {}
        self._await_attempts()
        for attempt in lost.values():
            if attempt.is_over or attempt.is_cut_off:
                continue
            attempt.is_over = True
            attempt.put(ReplicaLost(f"decode replica {self.info.replica_id} was lost: {reason}"))
        super()._break(reason)

    def _await_attempts(self) -> None:
        self._pulse.watch(is_awaited=bool(self._attempts))
