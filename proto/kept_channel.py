"""A channel that knows whether calls are under way on it, and may be closed while there are none.

    called --> opened --calls--> idle --close--> closed --called--> opened anew

So whoever holds one need not know that others, used more, have made it close its connection.
"""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any

import grpc
import grpc.aio

from baton.core.clock import Clock, monotonic


class KeptChannel(grpc.aio.Channel):
    def __init__(self, new: Callable[[], grpc.aio.Channel], clock: Clock = monotonic) -> None:
        self.num_calls = 0
        """Under way."""
        self.used_at = clock()
        self._new = new
        self._clock = clock
        self._channel: grpc.aio.Channel | None = None

    def unary_unary(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._calling("unary_unary", method, *codecs, **options)

    def unary_stream(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._calling("unary_stream", method, *codecs, **options)

    def stream_unary(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._calling("stream_unary", method, *codecs, **options)

    def stream_stream(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._calling("stream_stream", method, *codecs, **options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._open().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._open().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._open().channel_ready()

    def let_go(self) -> grpc.aio.Channel | None:
        """The connection, if there is one, for the caller to close: it is not used any more."""
        channel, self._channel = self._channel, None
        return channel

    async def close(self, grace: float | None = None) -> None:
        channel = self.let_go()
        if channel is not None:
            await channel.close(grace)

    async def __aenter__(self) -> KeptChannel:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()

    def _open(self) -> grpc.aio.Channel:
        self.used_at = self._clock()
        if self._channel is None:
            self._channel = self._new()
        return self._channel

    def _calling(self, kind: str, *codecs: Any, **options: Any) -> Callable[..., Any]:
        def call(*request: Any, **arguments: Any) -> Any:
            begun = getattr(self._open(), kind)(*codecs, **options)(*request, **arguments)
            self.num_calls += 1
            begun.add_done_callback(self._ended)
            return begun

        return call

    def _ended(self, _: Any) -> None:
        self.num_calls -= 1
        self.used_at = self._clock()
