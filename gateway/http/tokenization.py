"""POST /tokenize and /detokenize, compatible with vLLM."""

from __future__ import annotations

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from baton.core.errors import InvalidRequest
from baton.gateway.chat.conversation import encode_chat, for_model, render_chat
from baton.gateway.chat.message_schema import Message
from baton.gateway.chat.tool_definitions import Tool
from baton.gateway.http.completions.chat import conversation_of, fields_without_effect
from baton.gateway.http.completions.schemas import ChatBody
from baton.gateway.http.errors import json_response
from baton.gateway.http.unknown_fields import note_without_effect, read_known
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.sampling_options import check_tokens


class TokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Either `prompt`, or `messages` with other fields of a chat."""

    model: str | None = None
    """The one that is served, which is also the default, or one of its LoRA adapters."""
    prompt: str | None = None
    """A text."""
    messages: list[Message] | None = None
    tools: list[Tool] | None = None
    tool_choice: str | dict[str, Any] | None = None
    """The choice of tools; with `none` they are not shown to the model."""
    enable_thinking: bool | None = None
    """A variable of the chat template; not all have it."""
    thinking: bool | dict[str, Any] | None = None
    """A switch for thinking, as DeepSeek and Anthropic have it."""
    reasoning: dict[str, Any] | None = None
    """A switch for thinking, as OpenRouter has it: `effort`, `enabled`."""
    reasoning_effort: str | None = None
    """A variable of the chat template; not all have it."""
    verbosity: str | None = None
    """A variable of the chat template; not all have it."""
    chat_template_kwargs: dict[str, Any] | None = None
    """Variables for the switches of the chat template."""
    chat_template: str | None = None
    """The name of another of the model's chat templates; a template itself where the operator lets
    requests bring theirs."""
    add_generation_prompt: bool | None = None
    """End the prompt where an answer begins. True by default."""
    continue_final_message: bool | None = None
    """Go on with the last message in place of answering it."""
    add_special_tokens: bool | None = None
    """True by default for a prompt; templates write special tokens out."""
    return_token_strs: bool | None = None
    """Tell each token's text, too."""


CHAT_FIELDS = sorted({*TokenizeBody.__struct_fields__} & {*ChatBody.__struct_fields__} - {"model"})
"""Names of the fields that it shares with a chat's body."""


class TokenizeAnswer(msgspec.Struct, kw_only=True):
    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None = None


class DetokenizeBody(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    model: str | None = None
    tokens: list[int]


class DetokenizeAnswer(msgspec.Struct, kw_only=True):
    prompt: str


class TokenizationApi:
    def __init__(self, gateway: Gateway) -> None:
        self._gateway = gateway

    async def tokenize(self, request: Request) -> Response:
        gateway = self._gateway
        body = await read_known(request, gateway.config, TokenizeBody)
        gateway.check_model(body.model, request.state.caller)
        tokens = await self._tokens(request, body)
        token_text = gateway.model.tokenizer.token_text
        answer = TokenizeAnswer(
            count=len(tokens),
            max_model_len=gateway.max_model_len,
            tokens=list(tokens),
            token_strs=[token_text(token) for token in tokens] if body.return_token_strs else None,
        )
        return json_response(answer)

    async def detokenize(self, request: Request) -> Response:
        gateway = self._gateway
        body = await read_known(request, gateway.config, DetokenizeBody)
        gateway.check_model(body.model, request.state.caller)
        check_tokens(body.tokens, gateway.model.vocab_size, field="tokens")
        return json_response(DetokenizeAnswer(prompt=gateway.model.tokenizer.decode(body.tokens)))

    async def _tokens(self, request: Request, body: TokenizeBody) -> tuple[int, ...]:
        if (body.prompt is None) == (body.messages is None):
            raise InvalidRequest("exactly one of prompt and messages is needed", field="prompt")
        if body.prompt is not None:
            adds_special = body.add_special_tokens is not False
            return await self._gateway.encode(
                body.prompt, add_special_tokens=adds_special, prompt_field="prompt"
            )
        chat = ChatBody(**{name: getattr(body, name) for name in CHAT_FIELDS})
        conversation = for_model(self._gateway, conversation_of(chat, self._gateway))
        without_effect = fields_without_effect(chat, conversation.template)
        note_without_effect(request, self._gateway.config, without_effect)
        text = render_chat(conversation)
        return await encode_chat(self._gateway, conversation, text)
