"""A channel that proves who calls: by certificate, by the cluster's token, or by both.

When the certificate has been renewed, new calls go over a new connection that shows the new one;
calls under way stay where they are. Of several tokens calls show the first; once a call of that was
refused, later ones show the next.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from baton.core.wire_security import NO_TOKEN, WireSecurity
from baton.proto.channel_options import CHANNEL_OPTIONS, ChannelOptions
from baton.proto.cluster_token import TOKEN_KEY
from baton.proto.relayed_channel import RelayedChannel


class SecuredChannel(RelayedChannel):
    def __init__(
        self,
        address: str,
        security: WireSecurity,
        options: ChannelOptions = CHANNEL_OPTIONS,
    ) -> None:
        self._address = address
        self._options = options
        self._security = security.now()
        self._channel = self._open()
        self._num_refused = 0
        self._judging: set[asyncio.Task[None]] = set()
        self._earlier: list[grpc.aio.Channel] = []
        """A few in a process's life, idle once their calls have ended."""

    async def close(self, grace: float | None = None) -> None:
        for channel in (*self._earlier, self._channel):
            await channel.close(grace)

    def _current(self) -> grpc.aio.Channel:
        security, before = self._security.now(), self._security
        if security is not before:
            self._security = security
            if _identity(security) != _identity(before):
                self._earlier.append(self._channel)
                self._channel = self._open()
        return self._channel

    def _open(self) -> grpc.aio.Channel:
        security = self._security
        if not security.is_encrypted:
            return grpc.aio.insecure_channel(self._address, options=self._options)
        credentials = grpc.ssl_channel_credentials(*_identity(security))
        name = ("grpc.ssl_target_name_override", security.server_name)
        return grpc.aio.secure_channel(self._address, credentials, options=(*self._options, name))

    def _begin(
        self, start: Callable[..., Any], request: Sequence[Any], arguments: Mapping[str, Any]
    ) -> Any:
        tokens, number = self._security.tokens, self._num_refused
        token = tokens[number % len(tokens)] if tokens else NO_TOKEN
        shown = ((TOKEN_KEY, token),) if token else ()
        metadata = (*(arguments.get("metadata") or ()), *shown)
        begun = start(*request, **{**arguments, "metadata": metadata})
        if len(tokens) > 1:
            begun.add_done_callback(lambda call: self._look_after(call, number))
        return begun

    def _look_after(self, call: Any, number: int) -> None:
        judging = asyncio.ensure_future(self._judge(call, number))
        self._judging.add(judging)
        judging.add_done_callback(self._judging.discard)

    async def _judge(self, call: Any, number: int) -> None:
        """Count one refusal for all calls that were refused with the same token."""
        if await call.code() is grpc.StatusCode.UNAUTHENTICATED and number == self._num_refused:
            self._num_refused += 1


def _identity(security: WireSecurity) -> tuple[bytes, bytes, bytes]:
    return security.authority_pem, security.key_pem, security.certificate_pem
