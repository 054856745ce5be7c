"""Fields that bodies of /v1/classify, /v1/score and /v1/rerank share."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta
from starlette.requests import Request

from baton.gateway.requests.pooling.pooled import PoolingRequest
from baton.gateway.requests.unsupported import Label


class PooledBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    """The one that is served, which is also the default, or one of its LoRA adapters."""
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(
            description="vLLM's: so many tokens of a prompt at most, -1: the context; the end of "
            "the text, or of the second text, is left out.",
            extra_json_schema={"minimum": -1},
        ),
    ] = None
    use_activation: Annotated[
        bool | None, Meta(description="vLLM's: false gives logits. True by default.")
    ] = None
    activation: Annotated[bool | None, Meta(description="The same, formerly.")] = None
    softmax: Annotated[bool | None, Meta(description="The same, formerly.")] = None
    user: Label = None
    priority: int | None = None
    """Smaller comes first. 0 by default."""
    cache_salt: str | None = None
    """vLLM's: cached KV is shared only among requests of the same salt."""

    @property
    def is_activated(self) -> bool:
        given = (self.use_activation, self.activation, self.softmax)
        return next((value for value in given if value is not None), True)


class PooledUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


def order_of(request: Request, body: PooledBody, adapter: str) -> PoolingRequest:
    return PoolingRequest(
        request_id=request.state.request_id,
        priority=body.priority,
        adapter=adapter,
        cache_salt=body.cache_salt or "",
        caller=request.state.caller,
    )
