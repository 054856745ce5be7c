"""A channel that proves who calls: by certificate, by the cluster's token, or by both.

When the certificate has been renewed, new calls go over a new connection that shows the new one;
calls under way stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import grpc
import grpc.aio

from baton.core.wire_security import WireSecurity
from baton.proto.channel_options import CHANNEL_OPTIONS
from baton.proto.cluster_token import TOKEN_KEY
from baton.proto.relayed_channel import RelayedChannel


class SecuredChannel(RelayedChannel):
    def __init__(
        self,
        address: str,
        security: WireSecurity,
        options: tuple[tuple[str, int], ...] = CHANNEL_OPTIONS,
    ) -> None:
        self._address = address
        self._options = options
        self._security = security.now()
        self._channel = self._open()
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
        metadata = (*(arguments.get("metadata") or ()), *self._token())
        return start(*request, **{**arguments, "metadata": metadata})

    def _token(self) -> tuple[tuple[str, str], ...]:
        return tuple((TOKEN_KEY, token) for token in self._security.tokens[:1] if token)


def _identity(security: WireSecurity) -> tuple[bytes, bytes, bytes]:
    return security.authority_pem, security.key_pem, security.certificate_pem
