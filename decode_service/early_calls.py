"""Calls to prefill replicas that are opened before there are prompts for them.

    a prompt is over there --PREPARE_S--> early call --> the next prompt is written to it
                                             `- IDLE_S: closed


To open a call takes longer than a message on it, and an idle prefill replica begins so much sooner.
There is one early call a replica; prompts for which there is none open calls of their own. One that
has ended by itself (an older replica refuses it) keeps its place for as long as others would, so
that it is not tried again with each prompt.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import Any, NamedTuple

import grpc
import grpc.aio

from baton.core.ids import Epoch
from baton.core.replicas import ReplicaAddress
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.one_call import one_call
from baton.proto.replica_pb2_grpc import PrefillStub

EarlyCall = grpc.aio.StreamStreamCall[pb.PrefillRequest, pb.PrefillEvent]

PREPARE_S = 0.01
"""Seconds behind a prompt: its first tokens are decoded meanwhile."""
IDLE_S = 30.0
"""A call that waited for so long is closed: with a new one we prove our identity again."""
MAX_EARLY = 64
"""Replicas to which there are early calls: the one asked longest ago is forgotten first."""


class _Early(NamedTuple):
    call: EarlyCall
    closing: asyncio.TimerHandle


class EarlyCalls:
    """Belongs to one event loop."""

    def __init__(self, channels: Channels) -> None:
        self._channels = channels
        self._by_epoch: OrderedDict[Epoch, _Early] = OrderedDict()
        self._is_closed = False

    def __len__(self) -> int:
        return len(self._by_epoch)

    async def begin(self, peer: ReplicaAddress, request: pb.PrefillRequest) -> EarlyCall | None:
        """The call, with `request` written to it; None if there is none that works."""
        early = self._by_epoch.get(peer.epoch)
        if early is None or early.call.done():
            return None
        del self._by_epoch[peer.epoch]
        early.closing.cancel()
        try:
            await early.call.write(request)
        except (grpc.aio.AioRpcError, asyncio.InvalidStateError):  # it has just broken
            return None
        except BaseException:
            early.call.cancel()
            raise
        return early.call

    def prepare(self, peer: ReplicaAddress) -> None:
        """Open the next call to `peer` in a moment, if there is none."""
        if self._is_closed or peer.epoch in self._by_epoch:
            return
        asyncio.get_running_loop().call_later(PREPARE_S, self._open, peer)

    def close(self) -> None:
        """None is opened any more. Safe to repeat."""
        self._is_closed = True
        for epoch in tuple(self._by_epoch):
            self._close(epoch)

    def _open(self, peer: ReplicaAddress) -> None:
        if self._is_closed or peer.epoch in self._by_epoch:
            return
        calling: Any = one_call(PrefillStub, "AwaitPrompt", self._channels.to(peer.address))
        closing = asyncio.get_running_loop().call_later(IDLE_S, self._close, peer.epoch)
        self._by_epoch[peer.epoch] = _Early(calling(), closing)
        while len(self._by_epoch) > MAX_EARLY:
            self._close(next(iter(self._by_epoch)))

    def _close(self, epoch: Epoch) -> None:
        early = self._by_epoch.pop(epoch, None)
        if early is not None:
            early.closing.cancel()
            early.call.cancel()
