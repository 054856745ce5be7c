"""A gateway's watch of the registry, at the registry's own port where that is reachable.

    gateway --- Watch, through Serve ---------> registry    at first, each 30 s, and where the port
            <-- all of it, and where it listens             does not answer
            --- Watch: what is new since v? --> its port
            <-- what changed, when it does ---

After an answer that does not continue the known version, the whole state is requested.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.errors import InvalidConfig
from baton.core.ids import Epoch
from baton.core.replicas import Membership
from baton.platform.registry.follower import Follower
from baton.platform.registry.registry import CALM_WATCH_S
from baton.platform.security.config import SecurityConfig
from baton.platform.security.connections import load_security
from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import UNPINGED_CHANNEL_OPTIONS
from baton.proto.channels import Channels
from baton.proto.membership_wire import layout_id, update_from_proto
from baton.proto.replica_pb2_grpc import RegistryStub

log = logging.getLogger(__name__)

ANSWER_S = CALM_WATCH_S + 2.0
THROUGH_SERVE_S = 30.0
"""Seconds between calls through Serve, which may have a new registry, and for which an unresponsive
port is skipped."""


class RegistryWatch:
    """The gateway's side. Belongs to an event loop."""

    def __init__(
        self, handle: Any, security: SecurityConfig, model: str = "", clock: Clock = monotonic
    ) -> None:
        """`handle`: Serve's handle of the registry. `model`: watch only replicas of this model, if
        given."""
        self._handle = handle
        self._security = security
        self._model = model
        self._clock = clock
        self._follower = Follower()
        self._address = ""
        self._channel: grpc.aio.Channel | None = None
        self._serve_at_s = float("-inf")
        """When to call through Serve again."""
        self._avoided_until_s = float("-inf")

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        """Raises Ray's errors while the registry is away, and ValueError or KeyError for an
        unreadable answer: retry."""
        follower = self._follower
        if (incarnation, version) != (follower.incarnation, follower.version):
            follower = self._follower = Follower()  # the caller has not taken the last update
        asked = pb.WatchRequest(
            incarnation=follower.incarnation or "", version=max(0, follower.version)
        )
        answer = await self._ask(asked)
        self._follower = Follower()  # the update does not fit: request everything next
        known = {layout_id(layout): layout for layout in follower.layouts}
        membership = follower.take(update_from_proto(answer, known))
        if membership is None:
            raise ValueError(
                f"the registry sent version {answer.version}, which does not follow the version "
                "asked for"
            )
        self._follower = follower
        if not self._model:
            return membership
        own = tuple(info for info in membership.replicas if info.model == self._model)
        return replace(membership, replicas=own)

    async def _ask(self, asked: pb.WatchRequest) -> pb.MembershipUpdate:
        now = self._clock()
        if self._address and self._avoided_until_s <= now < self._serve_at_s:
            try:
                return await RegistryStub(self._to_port()).Watch(asked, timeout=ANSWER_S)
            except (grpc.aio.AioRpcError, InvalidConfig) as error:
                log.debug("the registry is asked through Serve: %r", error)
                self._avoided_until_s = self._clock() + THROUGH_SERVE_S
                self._channel = None  # its connection may be dead without an error
        answer = pb.MembershipUpdate.FromString(
            await self._handle.watch.remote(asked.SerializeToString())
        )
        self._serve_at_s = self._clock() + THROUGH_SERVE_S
        if answer.address != self._address:
            self._address, self._channel = answer.address, None
            self._avoided_until_s = float("-inf")
        return answer

    def _to_port(self) -> grpc.aio.Channel:
        if self._channel is None:
            channels = Channels(load_security(self._security))
            self._channel = channels.new(self._address, UNPINGED_CHANNEL_OPTIONS)
        return self._channel
