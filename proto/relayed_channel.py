"""A channel whose calls go over another one."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType
from typing import Any, Self

import grpc
import grpc.aio


class RelayedChannel(grpc.aio.Channel):
    @abstractmethod
    def _current(self) -> grpc.aio.Channel:
        """The one that a call goes over that begins now."""

    @abstractmethod
    def _begin(
        self, start: Callable[..., Any], request: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Any:
        """Make a call by `start`, which is the current channel's."""

    def unary_unary(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._calling("unary_unary", method, *codecs, **options)

    def unary_stream(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._calling("unary_stream", method, *codecs, **options)

    def stream_unary(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._calling("stream_unary", method, *codecs, **options)

    def stream_stream(self, method: str, *codecs: Any, **options: Any) -> Any:
        return self._calling("stream_stream", method, *codecs, **options)

    def get_state(self, try_to_connect: bool = False) -> grpc.ChannelConnectivity:
        return self._current().get_state(try_to_connect)

    async def wait_for_state_change(self, last_observed_state: grpc.ChannelConnectivity) -> None:
        await self._current().wait_for_state_change(last_observed_state)

    async def channel_ready(self) -> None:
        await self._current().channel_ready()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc_val: BaseException | None,
        exc_tb: TracebackType | None,
    ) -> None:
        await self.close()

    def _calling(self, kind: str, *codecs: Any, **options: Any) -> Callable[..., Any]:
        def call(*request: Any, **arguments: Any) -> Any:
            start = getattr(self._current(), kind)(*codecs, **options)
            return self._begin(start, request, arguments)

        return call
