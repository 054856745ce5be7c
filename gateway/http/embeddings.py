"""POST /v1/embeddings, and /pooling as vLLM has it: vectors of texts and of conversations."""

from __future__ import annotations

import base64
import struct
import time
from dataclasses import replace
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.gateway.chat.conversation import encode_chat, for_model, render_chat
from baton.gateway.chat.message_schema import Message
from baton.gateway.http.completions.chat import conversation_of
from baton.gateway.http.completions.schemas import ChatBody
from baton.gateway.http.sending.awaited_response import AwaitedResponse
from baton.gateway.http.unknown_fields import read_known
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.pooling.classification import classify, require_classifier
from baton.gateway.requests.pooling.embedding import EmbeddingRequest, embed, pooling_of
from baton.gateway.requests.pooling.pooled import MAX_INPUTS, PoolingRequest
from baton.gateway.requests.prompts import read_prompts
from baton.gateway.requests.unsupported import Label


class EmbeddingBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    """The one that is served, which is also the default, or one of its LoRA adapters."""
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
    messages: list[Message] | None = None
    """vLLM's, in place of `input`: a conversation, through the model's chat template."""
    add_generation_prompt: bool | None = None
    """vLLM's: end the conversation where an answer would begin. False by default."""
    continue_final_message: bool | None = None
    """vLLM's: leave out what the template writes behind the last message."""
    chat_template_kwargs: dict[str, Any] | None = None
    """vLLM's: variables for the switches of the model's own chat template."""
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
    """vLLM's: of the tokenizer, such as `<s>`. True by default for `input`."""
    priority: int | None = None
    """Smaller comes first. 0 by default."""
    cache_salt: str | None = None
    """vLLM's: cached KV is shared only among requests of the same salt."""


class PoolingBody(EmbeddingBody, kw_only=True, forbid_unknown_fields=True):
    task: Annotated[
        Literal["embed", "classify"] | None,
        Meta(description="What the model is for, which is also the default: labels, or vectors."),
    ] = None
    use_activation: Annotated[
        bool | None, Meta(description="False: logits of labels, vectors at their own length.")
    ] = None


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


class PoolingEntry(msgspec.Struct, kw_only=True):
    index: int
    object: Literal["pooling"] = "pooling"
    data: list[float] | str
    """The vector, or the probabilities of the labels."""


class PoolingAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[PoolingEntry]
    usage: EmbeddingUsage


class EmbeddingsApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> AwaitedResponse:
        gateway = self._gateway
        body = await read_known(request, gateway.config, EmbeddingBody)
        order = await self._order(request, body)
        return AwaitedResponse(self._answer(order, is_base64=body.encoding_format == "base64"))

    async def pool(self, request: Request) -> AwaitedResponse:
        gateway = self._gateway
        body = await read_known(request, gateway.config, PoolingBody)
        is_classifier = gateway.model.classifier is not None
        if body.task == "classify" or (body.task is None and is_classifier):
            require_classifier(gateway)
            _refuse_of_vectors(body)
        order = await self._order(request, body)
        return AwaitedResponse(self._pooled(order, body))

    async def _order(self, request: Request, body: EmbeddingBody) -> EmbeddingRequest:
        """Raises InvalidRequest."""
        gateway = self._gateway
        adapter = gateway.check_model(body.model, request.state.caller)
        inputs = await self._inputs(body)
        return EmbeddingRequest(
            request_id=request.state.request_id,
            inputs=_truncated(inputs, body.truncate_prompt_tokens, gateway.max_model_len),
            pooling=pooling_of(gateway, body.pooling),
            is_normalized=body.normalize is not False,
            dimensions=body.dimensions,
            priority=body.priority,
            adapter=adapter,
            cache_salt=body.cache_salt or "",
            caller=request.state.caller,
        )

    async def _inputs(self, body: EmbeddingBody) -> tuple[Prompt, ...]:
        gateway = self._gateway
        if body.messages is None:
            for name in ("add_generation_prompt", "continue_final_message", "chat_template_kwargs"):
                if getattr(body, name):
                    raise InvalidRequest(
                        f"{name} applies only to messages; leave it out", field=name
                    )
            adds_special = body.add_special_tokens is not False
            return await read_prompts(
                gateway, body.input, "input", adds_special=adds_special, max_prompts=MAX_INPUTS
            )
        if body.input is not None:
            raise InvalidRequest(
                "input and messages exclude each other; leave one out", field="messages"
            )
        chat = ChatBody(
            messages=body.messages,
            add_generation_prompt=bool(body.add_generation_prompt),
            continue_final_message=body.continue_final_message,
            chat_template_kwargs=body.chat_template_kwargs,
            add_special_tokens=body.add_special_tokens,
        )
        conversation = for_model(gateway, conversation_of(chat, gateway))
        text = render_chat(conversation)
        tokens = await encode_chat(gateway, conversation, text)
        return (Prompt(tokens=tokens, field="messages"),)

    async def _answer(self, order: EmbeddingRequest, *, is_base64: bool) -> EmbeddingListAnswer:
        found = await embed(self._gateway, order)
        num_tokens = found.usage.prompt_tokens
        return EmbeddingListAnswer(
            data=[
                EmbeddingAnswer(index=i, embedding=_base64(vector) if is_base64 else vector)
                for i, vector in enumerate(found.vectors)
            ],
            model=self._gateway.model.named(order.adapter),
            usage=EmbeddingUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )

    async def _pooled(self, order: EmbeddingRequest, body: PoolingBody) -> PoolingAnswer:
        gateway = self._gateway
        activates = body.use_activation is not False
        if body.task == "embed" or gateway.model.classifier is None:
            order = replace(order, is_normalized=order.is_normalized and activates)
            vectors = await embed(gateway, order)
            data, usage = vectors.vectors, vectors.usage
        else:
            asked = PoolingRequest(
                request_id=order.request_id,
                priority=order.priority,
                adapter=order.adapter,
                cache_salt=order.cache_salt,
                caller=order.caller,
            )
            classes = await classify(gateway, order.inputs, asked, is_activated=activates)
            data, usage = classes.probabilities, classes.usage
        is_base64 = body.encoding_format == "base64"
        return PoolingAnswer(
            id=f"pool-{order.request_id}",
            created=int(time.time()),
            model=gateway.model.named(order.adapter),
            data=[
                PoolingEntry(index=i, data=_base64(vector) if is_base64 else vector)
                for i, vector in enumerate(data)
            ],
            usage=EmbeddingUsage(
                prompt_tokens=usage.prompt_tokens, total_tokens=usage.prompt_tokens
            ),
        )


def _refuse_of_vectors(body: PoolingBody) -> None:
    """Raises InvalidRequest for what only vectors have."""
    for name in ("dimensions", "pooling", "normalize"):
        if getattr(body, name) is not None:
            raise InvalidRequest(
                f"{name} applies only to vectors, and this model answers with labels; leave it "
                "out, or set task to embed",
                field=name,
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
