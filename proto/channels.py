"""gRPC between our own processes: how a channel is opened, and how a server listens.

The only place that knows how these connections are secured.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from ipaddress import ip_address
from typing import Any

import grpc
import grpc.aio

from baton.core.clock import Clock, monotonic
from baton.core.replicas import ReplicaAddress
from baton.core.wire_security import PLAIN, WireSecurity
from baton.proto.channel_options import (
    CHANNEL_OPTIONS,
    SERVER_OPTIONS,
    UNPINGED_SERVER_OPTIONS,
    ChannelOptions,
)
from baton.proto.cluster_token import ClusterTokenInterceptor
from baton.proto.lasting_server import lasting_server
from baton.proto.pulse import PingTiming, Pulse
from baton.proto.relayed_channel import RelayedChannel
from baton.proto.secured_channel import SecuredChannel


class KeptChannel(RelayedChannel):
    """A channel that knows whether calls are under way on it, and since when there are none."""

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


MAX_IDLE = 64
"""Connections without a call that stay open: as many peers as one is likely to meet again."""
IDLE_S = 300.0
"""After this long without a call a connection is not kept, however few there are."""


class Channels:
    """Channels to our own processes: one an address, kept while it is used now and then.

    Those that are not to be kept are closed when the next channel is asked for: a process that
    asks for none leaves its connections open, for its peers to close when they end.
    """

    def __init__(
        self,
        security: WireSecurity = PLAIN,
        clock: Clock = monotonic,
        ping_timing: PingTiming = PingTiming(),  # noqa: B008  # frozen
    ) -> None:
        self.security = security
        self.ping_timing = ping_timing
        """Ping timing for peers that somebody waits for."""
        self._clock = clock
        self._kept: dict[str, KeptChannel] = {}
        self._closing: set[asyncio.Task[None]] = set()

    def to(self, address: str) -> grpc.aio.Channel:
        """The channel to `address` that all share who ask here, for calls that begin at once.

        Ask again for later ones: without a call it may have been closed meanwhile.
        """
        return self._to(address)

    def pulse(self, address: str) -> Pulse:
        """The pulse of the peer at `address`, for a caller that waits for it now."""
        return self._to(address).pulse

    def answering(self, peer: ReplicaAddress) -> AbstractAsyncContextManager[None]:
        """Within it the peer is waited for. Raises Unavailable there if it answers nobody."""
        return self.pulse(peer.address).answers(peer.replica_id)

    def new(self, address: str, options: ChannelOptions = CHANNEL_OPTIONS) -> grpc.aio.Channel:
        """A channel, and so a connection, of the caller's own; theirs to close."""
        if self.security == PLAIN:
            return grpc.aio.insecure_channel(_target(address), options=options)
        return SecuredChannel(address, self.security, options)

    def explain(self, error: grpc.aio.AioRpcError) -> str:
        """See the function: of a call on one of these."""
        return explain(error, is_secured=self.is_secured)

    @property
    def is_secured(self) -> bool:
        return self.security != PLAIN

    async def close(self) -> None:
        kept, self._kept = self._kept, {}
        for channel in kept.values():
            await channel.close()
        await asyncio.gather(*self._closing)

    def _to(self, address: str) -> KeptChannel:
        kept = self._kept.get(address)
        if kept is None:
            kept = KeptChannel(self.new(address), self.ping_timing, self._clock)
            self._kept[address] = kept
        kept.used_at = self._clock()
        self._close_idle(kept)
        return kept

    def _close_idle(self, wanted: KeptChannel) -> None:
        """Close those used longest ago; never `wanted`, nor one with a call under way."""
        idle = [
            address
            for address, kept in self._kept.items()
            if not kept.num_calls and kept is not wanted
        ]
        idle.sort(key=lambda address: self._kept[address].used_at)
        num_excess, oldest = len(idle) - MAX_IDLE, self._clock() - IDLE_S
        for number, address in enumerate(idle):
            if number < num_excess or self._kept[address].used_at <= oldest:
                closing = asyncio.ensure_future(self._kept.pop(address).close())
                self._closing.add(closing)
                closing.add_done_callback(self._closing.discard)


def _target(address: str) -> str:
    """The address for gRPC. One in numbers is said to be one: else each channel has a resolver of
    its own, which costs as much as to connect."""
    host, _, _ = address.rpartition(":")
    try:
        return f"ipv{ip_address(host.removeprefix('[').removesuffix(']')).version}:{address}"
    except ValueError:
        return address


def new_server(
    security: WireSecurity = PLAIN,
    strangers: ClusterTokenInterceptor | None = None,
    *,
    pings: bool = True,
) -> grpc.aio.Server:
    """A server for our own processes; see `listen`. `strangers`: who refuses them, if somebody
    wants to know how many."""
    options = SERVER_OPTIONS if pings else UNPINGED_SERVER_OPTIONS
    return lasting_server(
        options=options, interceptors=(strangers or ClusterTokenInterceptor(security),)
    )


def listen(server: grpc.aio.Server, address: str, security: WireSecurity = PLAIN) -> int:
    """Bind host:port, where port 0 lets the operating system choose; return the port."""
    if not security.is_encrypted:
        return server.add_insecure_port(address)
    renewed = security.now

    def identity() -> grpc.ServerCertificateConfiguration:
        """Asked at every handshake, so that a renewed certificate needs no restart."""
        now = renewed()
        return grpc.ssl_server_certificate_configuration(
            [(now.key_pem, now.certificate_pem)], now.authority_pem
        )

    credentials = grpc.dynamic_ssl_server_credentials(identity(), identity, security.checks_clients)
    return server.add_secure_port(address, credentials)


def explain(error: grpc.aio.AioRpcError, *, is_secured: bool) -> str:
    """What `error` says, and what an operator can do about a handshake that failed.

    `is_secured`: we speak TLS, so that it can be about certificates.
    """
    text = error.details() or error.code().name
    if "message larger than max" in text:
        return f"more than fits one message between replicas: shorten the prompt ({text})"
    if error.code() is not grpc.StatusCode.UNAVAILABLE:
        return text
    if "Socket closed" in text and "failed to connect" not in text:  # no handshake's matter
        return f"the peer hung up: it has just ended ({text})"
    if "Socket closed" in text and not is_secured:
        return (
            "the peer hung up: it has just ended, or it speaks TLS and this process does not "
            f"(all need one `security` configuration) ({text})"
        )
    for sign, remedy in _REMEDY_BY_SIGN.items():
        if sign in text:
            return f"{remedy} ({text})"
    return text


_REMEDY_BY_SIGN = {
    "certificate has expired": "the peer's certificate has expired: renew security.tls_cert_file "
    "on its node",
    "CERTIFICATE_VERIFY_FAILED": "the peer's certificate is not of our authority: both sides need "
    "certificates of one security.tls_ca_file",
    "Hostname Verification Check failed": "the peer's certificate does not bear the name in "
    "security.tls_server_name",
    "WRONG_VERSION_NUMBER": "the peer does not speak TLS: all processes need one `security` "
    "configuration",
    "Socket closed": "the peer hung up: it has just ended, or it refuses our certificate "
    "(security.tls_cert_file), or only one side speaks TLS",
}
