"""The gateway's branch of the configuration tree."""

from __future__ import annotations

from typing import Annotated, Literal

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
    max_choices: Count = 128
    """Completions of one request: its prompts times `n` or `best_of`."""
    tool_parser: Literal["auto", "none", "hermes", "llama3", "deepseek"] = "auto"
    """How the model writes tool calls. `auto` reads it off the chat template."""
    reasoning_parser: Literal["auto", "none", "think"] = "auto"
    """How the model marks its reasoning. `auto` reads it off the chat template."""
    resume_window_s: Seconds = 60.0
    """How long a resumable stream goes on, and is kept, without a client."""
    max_resumable_bytes: Count = 64 * MEBIBYTE
    """Of all resumable streams together; a stream that does not fit is refused (429)."""
    cors_origins: tuple[str, ...] = ()
    """Web pages of these origins may call the HTTP API; `*` is any. Empty: none may."""
    tls_cert_file: str = ""
    """PEM certificate chain for both ports. Empty: no encryption."""
    tls_key_file: str = ""
    """PEM private key of the certificate."""

    def __post_init__(self) -> None:
        if any(not key for key in self.api_keys):
            raise ValueError("api_keys must not contain an empty key")
        if bool(self.tls_cert_file) != bool(self.tls_key_file):
            raise ValueError("tls_cert_file and tls_key_file belong together: set both, or none")
