"""From a conversation to a prompt, the grammar of its answer, and how that is read.

    Conversation --render--> prompt text --+--> tokens
                                           +--> where reasoning may be --> grammar, parser

HTTP chats, gRPC chats and /v1/responses all come here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from baton.core.errors import InvalidRequest
from baton.core.messages import Grammar
from baton.platform.gateway.chat.reasoning import (
    THINK_BEGIN,
    THINK_END,
    ReasoningStart,
    has_reasoning,
    reasoning_start,
)
from baton.platform.gateway.chat.tools import formats
from baton.platform.gateway.chat.tools.definitions import ToolMode, ToolUse
from baton.platform.gateway.chat.tools.detect import call_format, calls_grammar, format_name
from baton.platform.gateway.chat.tools.formats import CallFormat
from baton.platform.gateway.chat.tools.output_parser import OutputParser
from baton.platform.gateway.gateway import Gateway
from baton.platform.gateway.grammars.structured_output import OutputRule
from baton.platform.gateway.order import Prompt
from baton.platform.gateway.text.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class Conversation:
    """What a face has understood of a chat."""

    messages: Sequence[Mapping[str, Any]]
    """As templates want them."""
    tools: ToolUse = field(default_factory=ToolUse)
    rule: OutputRule | None = None
    """What the answer must look like, if it is one: a call of a tool need not."""
    variables: Mapping[str, Any] = field(default_factory=dict)
    """Of the template."""
    is_continued: bool = False
    """The model goes on with the last message."""
    adds_generation_prompt: bool = True
    adds_special_tokens: bool = False
    """Templates write out the special tokens that a prompt begins with."""
    prompt_field: str = "messages"


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    prompt: Prompt
    grammar: Grammar | None
    shown_special: frozenset[int]
    calls: CallFormat
    max_calls: int | None
    reasoning: ReasoningStart

    def new_parser(self) -> OutputParser:
        """For one choice."""
        return OutputParser(self.calls, reasoning=self.reasoning, max_calls=self.max_calls)


async def plan_chat(gateway: Gateway, conversation: Conversation) -> ChatPlan:
    """Raises InvalidRequest."""
    tools = conversation.tools
    template = gateway.model.require_chat_template()
    parser = format_name(gateway.config.tool_parser, template.source)
    calls = _calls(gateway, parser, tools)
    text = render_chat(template, conversation)
    reasoning = ReasoningStart.NOWHERE
    if has_reasoning(gateway.config.reasoning_parser, template):
        reasoning = reasoning_start(text)
    rule = tools.rule() or conversation.rule
    tokens = await encode_chat(gateway, conversation, text)
    is_plain = calls is formats.content and reasoning is ReasoningStart.NOWHERE
    special_by_mark: dict[str, int] = {}
    if not is_plain:
        marks = (*formats.MARKERS, THINK_BEGIN, THINK_END)
        special_by_mark = gateway.model.tokenizer.special_tokens(marks)
    other_calls = _other_calls(parser, conversation, special_by_mark)
    return ChatPlan(
        prompt=Prompt(tokens=tokens, field=conversation.prompt_field),
        grammar=await gateway.grammars.accept(rule, reasoning=reasoning, calls=other_calls),
        shown_special=frozenset(special_by_mark.values()),
        calls=calls,
        max_calls=None if tools.is_parallel else 1,
        reasoning=reasoning,
    )


def render_chat(template: ChatTemplate, conversation: Conversation) -> str:
    """The prompt's text. Raises InvalidRequest."""
    tools = conversation.tools
    offered: list[dict[str, Any]] | None = None
    if tools.mode is not ToolMode.NONE:
        offered = [function.for_template() for function in tools.functions]
    messages, variables = conversation.messages, conversation.variables
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


async def encode_chat(gateway: Gateway, conversation: Conversation, text: str) -> tuple[int, ...]:
    return await gateway.encode(
        text,
        add_special_tokens=conversation.adds_special_tokens,
        prompt_field=conversation.prompt_field,
    )


def _calls(gateway: Gateway, parser: str, tools: ToolUse) -> CallFormat:
    if tools.mode is ToolMode.NONE:
        return formats.content
    if tools.forced_name is not None:
        return formats.forced_call(tools.forced_name)
    if tools.mode is ToolMode.REQUIRED:
        return formats.forced_calls
    names = frozenset(function.name for function in tools.functions)
    calls = call_format(parser, names)
    if calls is None:
        raise InvalidRequest(
            f"{tools.field}: how `{gateway.model.name}` writes tool calls is not known here; set "
            'gateway.tool_parser on the server, or tool_choice to "required" or a function',
            field=tools.field,
        )
    return calls


def _other_calls(
    parser: str, conversation: Conversation, special_by_mark: Mapping[str, int]
) -> str | None:
    """What the model may write in place of an answer that has a rule."""
    rule, tools = conversation.rule, conversation.tools
    if rule is None or tools.mode is not ToolMode.AUTO:
        return None
    calls = calls_grammar(parser, tools, special_by_mark)
    if calls is None:
        raise InvalidRequest(
            f"{rule.field} would keep this model from calling tools; set tool_choice to none or "
            "required",
            field=rule.field,
        )
    return calls
