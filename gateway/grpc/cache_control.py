"""Cache points in protobuf."""

from __future__ import annotations

from baton.gateway.requests.cache_control import EPHEMERAL, CacheControl
from baton.proto import inference_pb2 as pb


def cache_control(
    message: pb.GenerateRequest | pb.ChatRequest | pb.ChatMessage,
) -> CacheControl | None:
    """The cache control of a request or a message; an empty string means not set."""
    if not message.HasField("cache_control"):
        return None
    given = message.cache_control
    return CacheControl(type=given.type or EPHEMERAL, ttl=given.ttl or None)
