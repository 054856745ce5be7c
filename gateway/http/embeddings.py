"""POST /v1/embeddings"""

from __future__ import annotations

import base64
import struct
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.gateway.http.sending.awaited_response import AwaitedResponse
from baton.gateway.http.unknown_fields import read_known
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.order import Prompt
from baton.gateway.requests.pooling.embedding import EmbeddingOrder, embed, pooling_of
from baton.gateway.requests.pooling.pooled import MAX_INPUTS
from baton.gateway.requests.prompts import read_prompts
from baton.gateway.requests.unsupported import Label


class EmbeddingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    """The one that is served, which is also the default."""
    input: Annotated[
        str | list[Any] | None,
        Meta(description="A text, a list of token ids, or a list of either."),
    ] = None
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="base64: of little-endian 32-bit floats. float by default."),
    ] = None
    dimensions: Annotated[
        int | None,
        Meta(
            description="Only the first so many of the vector, at length 1 again.",
            extra_json_schema={"minimum": 1},
        ),
    ] = None
    user: Label = None

    pooling: Annotated[
        Literal["mean", "last"] | None,
        Meta(
            description="Baton's: of the hidden states after the last norm. As the model's own "
            "files say (sentence-transformers' Pooling), else mean."
        ),
    ] = None
    normalize: Annotated[
        bool | None, Meta(description="Baton's: to length 1. True by default.")
    ] = None
    truncate_prompt_tokens: Annotated[
        int | None,
        Meta(
            description="vLLM's: keep the last so many tokens of each input; -1: the context.",
            extra_json_schema={"minimum": -1},
        ),
    ] = None
    add_special_tokens: bool | None = None
    """vLLM's: of the tokenizer, such as `<s>`. True by default."""
    priority: int | None = None
    """Smaller comes first. 0 by default."""
    cache_salt: str | None = None
    """vLLM's: cached KV is shared only among requests of the same salt."""


class EmbeddingAnswer(msgspec.Struct, kw_only=True):
    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct, kw_only=True):
    prompt_tokens: int
    total_tokens: int


class EmbeddingListAnswer(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingAnswer]
    model: str
    usage: EmbeddingUsage


class EmbeddingsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> AwaitedResponse:
        gateway = self._gateway
        body = await read_known(request, gateway.config, EmbeddingBody)
        gateway.model.check_name(body.model)
        adds_special = body.add_special_tokens is not False
        inputs = await read_prompts(
            gateway, body.input, "input", adds_special=adds_special, max_prompts=MAX_INPUTS
        )
        order = EmbeddingOrder(
            request_id=request.state.request_id,
            inputs=_truncated(inputs, body.truncate_prompt_tokens, gateway.max_model_len),
            pooling=pooling_of(gateway, body.pooling),
            is_normalized=body.normalize is not False,
            dimensions=body.dimensions,
            priority=body.priority,
            cache_salt=body.cache_salt or "",
            caller=request.state.caller,
        )
        return AwaitedResponse(self._answer(order, is_base64=body.encoding_format == "base64"))

    async def _answer(self, order: EmbeddingOrder, *, is_base64: bool) -> EmbeddingListAnswer:
        found = await embed(self._gateway, order)
        num_tokens = found.usage.prompt_tokens
        return EmbeddingListAnswer(
            data=[
                EmbeddingAnswer(index=i, embedding=_base64(vector) if is_base64 else vector)
                for i, vector in enumerate(found.vectors)
            ],
            model=self._gateway.model.name,
            usage=EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )


def _truncated(
    inputs: tuple[Prompt, ...], num_tokens: int | None, max_model_len: int
) -> tuple[Prompt, ...]:
    if num_tokens is None:
        return inputs
    if num_tokens == 0 or num_tokens < -1:
        raise InvalidRequest(
            f"truncate_prompt_tokens must be at least 1, or -1 for the context; got {num_tokens}",
            field="truncate_prompt_tokens",
        )
    limit = max_model_len if num_tokens == -1 else num_tokens
    return tuple(replace(prompt, tokens=prompt.tokens[-limit:]) for prompt in inputs)


def _base64(vector: list[float]) -> str:
    return base64.b64encode(struct.pack(f"<{len(vector)}f", *vector)).decode()
