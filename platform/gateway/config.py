"""The gateway's branch of the configuration tree."""

from __future__ import annotations

from typing import Annotated

import msgspec

from baton.platform.config_node import ConfigNode, Count, Port, Seconds

MEBIBYTE = 1 << 20


class GatewayConfig(ConfigNode, frozen=True, kw_only=True):
    host: str = "127.0.0.1"
    """Where both ports listen. `0.0.0.0` lets other machines in."""
    port: Port = 8000
    """OpenAI-compatible HTTP."""
    grpc_port: Port = 8001
    """The public gRPC service, `baton.v1.Inference`."""
    max_body_bytes: Count = 16 * MEBIBYTE
    """Larger requests are refused (413) without being read."""
    request_timeout_s: Seconds = 600.0
    """From the arrival of a request to its last token."""
    api_keys: frozenset[str] = frozenset()
    """Keys accepted as `Authorization: Bearer ...`; with none, everybody is let in."""
    max_waiting: Count = 1024
    """Requests that may wait here for a decode replica; more are refused (429)."""
    short_prompt_tokens: Annotated[int, msgspec.Meta(ge=0)] = 64
    """Prompts with at most this many uncached tokens are computed by the decode replica itself."""

    def __post_init__(self) -> None:
        if any(not key for key in self.api_keys):
            raise ValueError("api_keys must not contain an empty key")
