"""POST /v1/chat/completions"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from msgspec import UNSET
from starlette.requests import Request

from baton.core.errors import InvalidRequest
from baton.platform.gateway.answers import Answer, ChatChoice, ChatLogprobs, ChatMessage
from baton.platform.gateway.chat_messages import chat_messages
from baton.platform.gateway.common_fields import answer_options, sampling_options
from baton.platform.gateway.gateway import CompletionOrder, Gateway
from baton.platform.gateway.logprobs import chat_logprobs
from baton.platform.gateway.request_body import decode_body, read_body
from baton.platform.gateway.request_ids import unique_request_id
from baton.platform.gateway.responder import Responder
from baton.platform.gateway.schemas import ChatBody, refuse_unsupported
from baton.platform.gateway.served_model import ServedModel
from baton.platform.gateway.text.output_text import TextDelta


class ChatApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def create(self, request: Request) -> Responder:
        gateway = self._gateway
        data = await read_body(request, gateway.config)
        body = decode_body(data, ChatBody)
        gateway.model.check_name(body.model)
        refuse_unsupported(body)
        options = answer_options(request, body)
        prompt = await self._prompt(body)
        public_id: str = request.state.request_id
        stream = gateway.complete(_order(body, prompt, public_id))
        answer_format = ChatFormat(
            id=f"chatcmpl-{public_id}",
            created=int(time.time()),
            model=gateway.model,
            wants_logprobs=bool(body.logprobs),
            prompt_token_ids=prompt if body.return_token_ids else None,
        )
        return Responder(stream, answer_format, options)

    async def _prompt(self, body: ChatBody) -> tuple[int, ...]:
        template = self._gateway.model.require_chat_template()
        text = template.render(chat_messages(body.messages), variables=body.chat_template_kwargs)
        # The template writes out the special tokens that a prompt begins with.
        return await self._gateway.encode(
            text, add_special_tokens=bool(body.add_special_tokens), prompt_field="messages"
        )


def _order(body: ChatBody, prompt: tuple[int, ...], public_id: str) -> CompletionOrder:
    if body.top_logprobs is not None and not body.logprobs:
        raise InvalidRequest("top_logprobs needs logprobs to be true", field="top_logprobs")
    max_name = "max_tokens" if body.max_completion_tokens is None else "max_completion_tokens"
    return CompletionOrder(
        request_id=unique_request_id(public_id),
        prompt=prompt,
        options=sampling_options(
            body,
            num_logprobs=(body.top_logprobs or 0) if body.logprobs else None,
            max_tokens=getattr(body, max_name),
        ),
        field_by_option={
            "prompt": "messages",
            "num_logprobs": "top_logprobs",
            "max_tokens": max_name,
        },
        cache_salt=body.cache_salt or "",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatFormat:
    id: str
    created: int
    model: ServedModel
    wants_logprobs: bool
    prompt_token_ids: Sequence[int] | None
    """Set if token ids were asked for."""

    def whole(self, delta: TextDelta) -> Answer:
        choice = self._choice(delta)
        choice.message = ChatMessage(role="assistant", content=delta.text)
        return self._answer("chat.completion", (choice,), is_first=True)

    def chunk(self, delta: TextDelta, *, is_first: bool) -> Answer:
        choice = self._choice(delta)
        choice.delta = ChatMessage(
            role="assistant" if is_first else UNSET,
            content=delta.text if delta.text or is_first else UNSET,
        )
        return self._answer("chat.completion.chunk", (choice,), is_first=is_first)

    def closing(self) -> Answer:
        return self._answer("chat.completion.chunk", (), is_first=False)

    def _choice(self, delta: TextDelta) -> ChatChoice:
        logprobs: ChatLogprobs | None = None
        if self.wants_logprobs:
            logprobs = chat_logprobs(delta, self.model.tokenizer)
        return ChatChoice(
            logprobs=logprobs,
            finish_reason=delta.finish_reason,
            token_ids=UNSET if self.prompt_token_ids is None else delta.tokens,
        )

    def _answer(self, kind: str, choices: Sequence[ChatChoice], *, is_first: bool) -> Answer:
        has_prompt = is_first and self.prompt_token_ids is not None
        return Answer(
            id=self.id,
            object=kind,
            created=self.created,
            model=self.model.name,
            choices=choices,
            prompt_token_ids=(self.prompt_token_ids or ()) if has_prompt else UNSET,
        )
