"""A client's connection settings: address, TLS, API key, timeouts, retries."""

from __future__ import annotations

import ipaddress
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypedDict

import grpc

from baton.client.retry import RetryPolicy, checked_timeout_s

Pem = str | bytes | Path
"""The text itself as bytes, or the path of a file."""

CHANNEL_OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.initial_reconnect_backoff_ms", 200),  # its default, a second, would fail our retries
    ("grpc.max_reconnect_backoff_ms", 5_000),
    ("grpc.keepalive_time_ms", 10_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.http2.ping_timeout_ms", 10_000),  # its default, a minute, overrules the one above
)


class PlaintextKeyWarning(UserWarning):
    """An API key is sent over an unencrypted connection."""


class ClientOptions(TypedDict, total=False):
    """Options; those not given take the default named here."""

    api_key: str | None
    """None. Over a connection that is not encrypted it can be read on the way: see `tls`."""
    timeout_s: float
    """600; the timeout of calls without one, for all attempts together."""
    retry: RetryPolicy
    """`RetryPolicy()`"""
    resumable: bool
    """True; whether calls are resumable by default. The README states the cost."""
    tls: bool
    """False, unless one of the options below is given."""
    ca_cert: Pem | None
    """Certificate authorities for the server's certificate. Default: the public ones."""
    client_cert: Pem | None
    """The client's certificate, for servers that ask for one (mutual TLS)."""
    client_key: Pem | None
    """The private key of `client_cert`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Connection:
    """The options, checked."""

    target: str
    timeout_s: float
    retry: RetryPolicy
    is_resumable: bool
    credentials: grpc.ChannelCredentials | None
    """None: not encrypted."""
    metadata: tuple[tuple[str, str], ...] = field(repr=False)


def connection_to(target: str, options: ClientOptions) -> Connection:
    """Raises TypeError, ValueError or OSError for options that cannot work."""
    for name in options:
        if name not in ClientOptions.__annotations__:
            raise TypeError(f"unknown option {name!r}")
    credentials = _credentials(options)
    api_key = options.get("api_key")
    if api_key and credentials is None and not is_loopback(target):
        warnings.warn(
            f"the API key is sent to {target} unencrypted, for anybody on the way to read; "
            "use tls=True",
            PlaintextKeyWarning,
            stacklevel=3,
        )
    return Connection(
        target=target,
        timeout_s=checked_timeout_s(options.get("timeout_s", 600.0)),
        retry=options.get("retry") or RetryPolicy(),
        is_resumable=options.get("resumable", True),
        credentials=credentials,
        metadata=(("authorization", f"Bearer {api_key}"),) if api_key else (),
    )


def is_loopback(target: str) -> bool:
    """Whether `host:port` is this machine."""
    if target.startswith("unix:"):
        return True
    host = target.rpartition("/")[2]  # without a resolver, such as dns:///
    host = host.rpartition(":")[0] or host
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def _credentials(options: ClientOptions) -> grpc.ChannelCredentials | None:
    ca_cert = _pem(options.get("ca_cert"))
    client_cert, client_key = _pem(options.get("client_cert")), _pem(options.get("client_key"))
    if (client_cert is None) != (client_key is None):
        raise ValueError("client_cert and client_key belong together: give both, or none")
    is_needed = ca_cert is not None or client_cert is not None
    if not options.get("tls", is_needed):
        if is_needed:
            raise ValueError("certificates are for encrypted connections; leave out tls=False")
        return None
    return grpc.ssl_channel_credentials(ca_cert, client_key, client_cert)


def _pem(source: Pem | None) -> bytes | None:
    if source is None or isinstance(source, bytes):
        return source
    return Path(source).read_bytes()
