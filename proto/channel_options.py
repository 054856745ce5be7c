"""How every gRPC connection between our own processes is set up.

A peer that neither answers nor closes (stopped, partitioned) is cut off 5 s after the last byte
that came from it. The client pings whenever it has heard nothing for a second, a gateway for two:
both ends are sure to hear something in that time, and either stands a silence of 4 s, or of 3. The
server pings only a client that does not. Who waits for a peer hears sooner that it is silent
(`pulse.py`). Servers must allow pings that often, or they answer with GOAWAY. Calls that end by
themselves soon, whoever falls silent, need no such pings, which cost both sides more than a call a
second.

Nobody sends a message larger than what can be said of a prompt, and nobody takes one: the largest
is the logprobs of a prompt of 2^20 tokens. Prompts themselves (5 bytes a token), the names of all
blocks of a cache (16 bytes each) and pieces of KV (2 MiB, or one block of a plane) stay far below.
"""

from __future__ import annotations

from typing import TypeAlias

_TOKENS = 1 << 20
_LOGPROBS_OF_A_TOKEN = 21 * 13 + 15
"""Bytes: 20 alternatives and the token itself, each with its number, its logprob and their tags."""
_MARGIN = 1 << 20
MAX_MESSAGE_BYTES = _TOKENS * _LOGPROBS_OF_A_TOKEN + _MARGIN

ChannelOptions: TypeAlias = tuple[tuple[str, int], ...]

CUT_OFF_MS = 5000
CLIENT_PING_MS, LINK_PING_MS, SERVER_PING_MS = 1000, 2000, 2500
"""Milliseconds without a byte from the peer after which a ping is sent: each costs both ends
60 microseconds and more, and a gateway has a link to a thousand replicas."""


def _keepalive(ping_ms: int) -> ChannelOptions:
    answer_ms = CUT_OFF_MS - ping_ms
    return (
        ("grpc.keepalive_time_ms", ping_ms),
        ("grpc.keepalive_timeout_ms", answer_ms),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.ping_timeout_ms", answer_ms),  # its default, a minute, overrules keepalive's
        ("grpc.http2.max_pings_without_data", 0),
    )


_SIZES = (
    ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
    ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
)

UNPINGED_CHANNEL_OPTIONS: ChannelOptions = (
    *_SIZES,
    # Channels to one address share a connection by default; a slow stream could starve another.
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.min_reconnect_backoff_ms", 2000),  # in truth the time a connection may take
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 2000),
)
CHANNEL_OPTIONS = (*_keepalive(CLIENT_PING_MS), *UNPINGED_CHANNEL_OPTIONS)

LINK_CHANNEL_OPTIONS = (
    *_keepalive(LINK_PING_MS),
    *UNPINGED_CHANNEL_OPTIONS,
    # Of a gateway, which has a thousand: small frames come now and then, and each would be followed
    # by a ping that measures how much the connection could carry. A fixed window does for tokens,
    # and for snapshots of caches over 25 MB/s at 10 ms from one end to the other and back.
    ("grpc.http2.bdp_probe", 0),
    ("grpc.http2.lookahead_bytes", 256 << 10),
    # Streams are opened anew by who holds them; to be ready to do it costs 6 kB a stream.
    ("grpc.enable_retries", 0),
)

UNPINGED_SERVER_OPTIONS: ChannelOptions = (
    *_SIZES,
    ("grpc.http2.min_ping_interval_without_data_ms", 500),
    ("grpc.http2.max_ping_strikes", 0),
    # Two servers on one port would share its connections: never what a replica means.
    ("grpc.so_reuseport", 0),
)
SERVER_OPTIONS = (*_keepalive(SERVER_PING_MS), *UNPINGED_SERVER_OPTIONS)
