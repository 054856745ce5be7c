"""A channel that knows whether calls are under way on it, and since when there are none."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.proto.pulse import PingTiming, Pulse
from baton.proto.relayed_channel import RelayedChannel


class KeptChannel(RelayedChannel):
    def __init__(
        self, channel: grpc.aio.Channel, ping_timing: PingTiming, clock: Clock = monotonic
    ) -> None:
        self.num_calls = 0
        """Under way."""
        self.used_at = clock()
        self._channel = channel
        self._clock = clock
        self.pulse = Pulse(self, ping_timing, clock=clock)

    async def close(self, grace: float | None = None) -> None:
        self.pulse.close()
        await self._channel.close(grace)

    def _current(self) -> grpc.aio.Channel:
        return self._channel

    def _begin(
        self, start: Callable[..., Any], request: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Any:
        begun = start(*request, **arguments)
        self.num_calls += 1
        begun.add_done_callback(self._ended)
        return begun

    def _ended(self, _: Any) -> None:
        self.num_calls -= 1
        self.used_at = self._clock()
