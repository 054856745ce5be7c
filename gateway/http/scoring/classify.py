"""POST /v1/classify, as vLLM has it."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta
from starlette.requests import Request

from baton.gateway.http.scoring.pooled_body import PooledBody, PooledUsage, order_of
from baton.gateway.http.sending.awaited_response import AwaitedResponse
from baton.gateway.http.unknown_fields import read_known
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.pooling.classification import classify, require_classifier
from baton.gateway.requests.pooling.pairs import max_tokens_of, text_prompts
from baton.gateway.requests.pooling.pooled import PoolingRequest


class ClassifyBody(PooledBody, kw_only=True, forbid_unknown_fields=True):
    input: Annotated[
        str | list[Any] | None,
        Meta(description="A text, a list of token ids, or a list of either."),
    ] = None
    add_special_tokens: bool | None = None
    """vLLM's: of the tokenizer, such as `<s>`. True by default."""


class ClassAnswer(msgspec.Struct, kw_only=True):
    index: int
    label: str
    """The most probable."""
    probs: list[float]
    """Probabilities in the order of the model's labels."""
    num_classes: int


class ClassifyAnswer(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: list[ClassAnswer]
    usage: PooledUsage


class ClassifyApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> AwaitedResponse:
        gateway = self._gateway
        body = await read_known(request, gateway.config, ClassifyBody)
        adapter = gateway.check_model(body.model, request.state.caller)
        require_classifier(gateway)
        inputs = await text_prompts(
            gateway,
            body.input,
            "input",
            adds_special=body.add_special_tokens is not False,
            max_tokens=max_tokens_of(gateway, body.truncate_prompt_tokens),
        )
        return AwaitedResponse(
            self._answer(order_of(request, body, adapter), inputs, is_activated=body.is_activated)
        )

    async def _answer(
        self, order: PoolingRequest, inputs: tuple[Prompt, ...], *, is_activated: bool
    ) -> ClassifyAnswer:
        found = await classify(self._gateway, inputs, order, is_activated=is_activated)
        num_tokens = found.usage.prompt_tokens
        return ClassifyAnswer(
            id=f"classify-{order.request_id}",
            created=int(time.time()),
            model=self._gateway.model.named(order.adapter),
            data=[
                ClassAnswer(
                    index=index,
                    label=found.labels[max(range(len(probs)), key=probs.__getitem__)],
                    probs=probs,
                    num_classes=len(probs),
                )
                for index, probs in enumerate(found.probabilities)
            ],
            usage=PooledUsage(prompt_tokens=num_tokens, total_tokens=num_tokens),
        )
