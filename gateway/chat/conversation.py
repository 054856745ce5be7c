"""A conversation, and how it becomes the text of a prompt, and tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from baton.core.errors import InvalidRequest
from baton.gateway.chat.generic_tools import OFFER_BEGIN, in_words
from baton.gateway.chat.template_messages import for_template
from baton.gateway.chat.tool_definitions import ToolMode, ToolUse
from baton.gateway.chat.tool_detection import GENERIC, format_name
from baton.gateway.grammars.structured_output import OutputRule
from baton.gateway.requests.cache_control import MarkedMessage
from baton.gateway.requests.gateway import Gateway
from baton.gateway.text.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """A chat request as an API has read it."""

    messages: Sequence[Mapping[str, Any]]
    """The messages as templates want them."""
    template: ChatTemplate
    """The chat template that writes this prompt."""
    tools: ToolUse = field(default_factory=ToolUse)
    rule: OutputRule | None = None
    """The format of the answer; a tool call is not bound by it."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Variables for the template's own switches."""
    is_continued: bool = False
    """The model goes on with the last message."""
    adds_generation_prompt: bool = True
    adds_special_tokens: bool = False
    """False by default: templates write the special tokens at the beginning of a prompt."""
    prompt_field: str = "messages"
    marks: tuple[MarkedMessage, ...] = ()
    """The messages, or ends of parts, after which cache points stand."""
    ignores_eos: bool = False
    """The output continues after end-of-sequence, which no grammar can follow."""
    call_format: str = ""
    """How the model writes calls (tool_detection.py)."""
    has_tools_in_words: bool = False
    """Tools, calls and results are given to the template as plain text."""


def render_chat(conversation: Conversation) -> str:
    """The prompt's text. Raises InvalidRequest."""
    tools, messages = conversation.tools, conversation.messages
    if conversation.has_tools_in_words:
        try:
            text = _render(conversation, in_words(messages, tools), None)
        except InvalidRequest:
            if tools.mode is ToolMode.NONE:
                raise
        else:
            if tools.mode is ToolMode.NONE or OFFER_BEGIN in text:
                return text  # some templates leave system messages out without a word
        return _render(conversation, in_words(messages, tools, in_system=False), None)
    offered: list[dict[str, Any]] | None = None
    if tools.mode is not ToolMode.NONE:
        offered = [function.for_template() for function in tools.functions]
    messages = for_template(
        messages,
        offered,
        call_format=conversation.call_format,
        template=conversation.template.source,
    )
    return _render(conversation, messages, offered)


def _render(
    conversation: Conversation,
    messages: Sequence[Mapping[str, Any]],
    offered: Sequence[Mapping[str, Any]] | None,
) -> str:
    template, variables = conversation.template, conversation.variables
    try:
        if conversation.is_continued:
            return template.render_open(messages, tools=offered, variables=variables)
        return template.render(
            messages,
            tools=offered,
            add_generation_prompt=conversation.adds_generation_prompt,
            variables=variables,
        )
    except InvalidRequest as error:
        field = conversation.prompt_field if error.field == "messages" else error.field
        raise InvalidRequest(error.message, field=field) from error


def for_model(gateway: Gateway, conversation: Conversation) -> Conversation:
    """The conversation for `render_chat`, with tools as text where the template has no format for
    tools, or an unknown one."""
    template = conversation.template
    name = tool_format(gateway, template)
    has_words = name == GENERIC or (name in ("hermes", "none") and not template.has_tools)
    return replace(conversation, call_format=name, has_tools_in_words=has_words)


def tool_format(gateway: Gateway, template: ChatTemplate) -> str:
    """The model's call format; with tools as text, the generic format that the text asks for."""
    setting = gateway.config.tool_parser
    if setting == "auto" and not template.has_tools:
        return GENERIC
    return format_name(setting, template.source)


async def encode_chat(gateway: Gateway, conversation: Conversation, text: str) -> tuple[int, ...]:
    return await gateway.encode(
        text,
        add_special_tokens=conversation.adds_special_tokens,
        prompt_field=conversation.prompt_field,
    )
