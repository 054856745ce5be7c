"""Plans a chat: its prompt, the grammar of its answer, and the parser of that answer.

    Conversation --render--> prompt text --+--> tokens
                                           +--> where reasoning may be --> grammar, parser

HTTP chats, gRPC chats and /v1/responses all come here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from baton.core.errors import InvalidRequest, Overloaded
from baton.core.parking import Parking
from baton.core.sampling import Grammar, GrammarKind
from baton.gateway.chat.cache_points import find_cache_points
from baton.gateway.chat.call_grammars import calls_grammar, optional_calls
from baton.gateway.chat.conversation import (
    Conversation,
    encode_chat,
    for_model,
    render_chat,
    tool_format,
)
from baton.gateway.chat.functions import NO_PARAMETERS, Function, TextFunction
from baton.gateway.chat.lark import NotHeld, without_notes
from baton.gateway.chat.tool_definitions import ToolMode, ToolUse
from baton.gateway.chat.tool_detection import GENERIC, MARKERS, call_format
from baton.gateway.grammars.structured_output import OutputRule, json_rule
from baton.gateway.output import formats, harmony
from baton.gateway.output.formats import CallFormat
from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import call_ids, new_call_id
from baton.gateway.output.reasoning import (
    THINK_BEGIN,
    THINK_END,
    ReasoningStart,
    reasoning_format,
    reasoning_start,
)
from baton.gateway.requests.completion_request import Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.text.chat_template import ChatTemplate


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatPlan:
    prompt: Prompt
    template: ChatTemplate
    grammar: Grammar | None
    shown_special: frozenset[int]
    calls: CallFormat
    max_calls: int | None
    reasoning: ReasoningStart
    is_generic: bool
    """Tools are described in the prompt, because the model's own call format is unknown."""
    custom_names: frozenset[str]
    """Names of custom tools, which take a text."""
    unheld_fields: tuple[str, ...]
    """Fields of custom tools' grammars that are not enforced."""
    trusts_schemas: bool
    """Calls are not constrained to their schemas, although the caller has not turned that off."""

    stream_id: str = ""
    """The id of a resumable stream: call ids are derived from it, so that any gateway writes the
    same."""

    def new_parser(self, choice: int = 0) -> OutputParser:
        ids = call_ids(self.stream_id, choice)
        return OutputParser(
            self.calls,
            reasoning=self.reasoning,
            max_calls=self.max_calls,
            custom_names=self.custom_names,
            call_id=partial(next, ids) if self.stream_id else new_call_id,
        )


async def plan_chat(
    gateway: Gateway, conversation: Conversation, parking: Parking | None
) -> ChatPlan:
    """Raises InvalidRequest."""
    conversation = for_model(gateway, conversation)
    tools = conversation.tools
    template = conversation.template
    parser = tool_format(gateway, template)
    text = render_chat(conversation)
    thoughts = reasoning_format(gateway.config.reasoning_parser, template)
    reasoning = reasoning_start(thoughts, text)
    if "harmony" in (parser, thoughts):
        calls = _calls_in_messages(tools)
    else:
        calls = _calls(gateway, parser, tools)
    tokens = await encode_chat(gateway, conversation, text)
    is_plain = calls is formats.content and reasoning is ReasoningStart.NOWHERE
    special_by_mark: dict[str, int] = {}
    if not is_plain:
        marks = (*MARKERS, THINK_BEGIN, THINK_END)
        special_by_mark = gateway.model.tokenizer.special_tokens(marks)
    grammar = await _grammar(gateway, parser, conversation, reasoning, special_by_mark)
    return ChatPlan(
        prompt=Prompt(
            tokens=tokens,
            field=conversation.prompt_field,
            cache_points=await find_cache_points(gateway, conversation, text, tokens),
        ),
        template=template,
        grammar=grammar,
        shown_special=frozenset(special_by_mark.values()),
        calls=calls,
        max_calls=None if tools.is_parallel else 1,
        reasoning=reasoning,
        is_generic=tools.mode is ToolMode.AUTO and parser == GENERIC,
        custom_names=tools.custom_names,
        unheld_fields=tuple(_unheld_fields(tools, grammar)),
        trusts_schemas=(
            tools.mode is ToolMode.AUTO and grammar is None and not _is_trust_wanted(tools)
        ),
        stream_id="" if parking is None else parking.stream_id,
    )


def _unheld_fields(tools: ToolUse, grammar: Grammar | None) -> Iterator[str]:
    """Fields of grammars that cannot be enforced in an optional call. A regex becomes a part of the
    call's schema; another grammar would have to express JSON's quoting."""
    is_trusted = tools.mode is ToolMode.AUTO and grammar is None
    for function in tools.functions if tools.mode is not ToolMode.NONE else ():
        if is_trusted and function.strict and not isinstance(function, TextFunction):
            *within, _ = tools.schema_field.split(".")
            yield ".".join((tools.path(function), *within, "strict"))
        if isinstance(function, TextFunction) and (rule := function.rule) is not None:
            is_held = grammar is not None and rule.grammar.kind is GrammarKind.REGEX
            if not is_held and function.name != tools.forced_name:
                yield rule.field


async def _grammar(
    gateway: Gateway,
    parser: str,
    conversation: Conversation,
    reasoning: ReasoningStart,
    special_by_mark: Mapping[str, int],
) -> Grammar | None:
    tools = conversation.tools
    rule = tools.rule() or conversation.rule
    if rule is not None or not _holds_to_schemas(gateway, parser, conversation):
        calls = _other_calls(parser, conversation, special_by_mark)
        try:
            return await gateway.grammars.accept(rule, reasoning=reasoning, calls=calls)
        except InvalidRequest:
            if gateway.grammars.has_end:  # else no part is at fault
                with suppress(Overloaded):  # it is refused all the same
                    await _refuse_bad_part(gateway, conversation, calls)
            raise
    other_special = gateway.model.tokenizer.special.difference(
        special_by_mark.values(), gateway.model.eos_token_ids
    )
    calls = optional_calls(parser, tools, special_by_mark, other_special)
    if calls is None:
        return None
    strict = [one for one in tools.functions if one.strict]
    try:
        return await gateway.grammars.accept_free(calls, tools.field, reasoning=reasoning)
    except Overloaded:
        if strict:
            raise
    except InvalidRequest:
        # The caller has not asked for this grammar, so only a strict schema that is itself invalid
        # is refused.
        for function in strict:
            with suppress(NotHeld):
                await gateway.grammars.accept(_schema_rule(function, tools))
    return None  # not enforced


async def _refuse_bad_part(gateway: Gateway, conversation: Conversation, calls: str | None) -> None:
    """A grammar of several parts cannot be followed: raises InvalidRequest that names the part
    which cannot be followed by itself, if there is one."""
    tools = conversation.tools
    is_call_of_any = tools.mode is ToolMode.REQUIRED and tools.forced_name is None
    if calls is not None:
        await gateway.grammars.accept(conversation.rule)
    if calls is not None or is_call_of_any:
        for function in tools.functions:
            schema, path = function.parameters or NO_PARAMETERS, tools.schema_path(function)
            await gateway.grammars.accept(json_rule(schema, field=path))


def _schema_rule(function: Function, tools: ToolUse) -> OutputRule:
    """Raises NotHeld."""
    field = tools.schema_path(function)
    schema = msgspec.json.encode(without_notes(function.parameters or NO_PARAMETERS)).decode()
    return OutputRule(field=field, grammar=Grammar(GrammarKind.JSON_SCHEMA, schema))


def _holds_to_schemas(gateway: Gateway, parser: str, conversation: Conversation) -> bool:
    """The grammar of optional calls that have to fit their schemas once the model makes one."""
    tools = conversation.tools
    if tools.mode is not ToolMode.AUTO:
        return False
    if any(function.strict for function in tools.functions):
        return True
    is_wanted = gateway.config.tool_schemas == "hold" and not _is_trust_wanted(tools)
    return (is_wanted or parser == GENERIC) and not conversation.ignores_eos


def _is_trust_wanted(tools: ToolUse) -> bool:
    """Whether the caller set strict to false for all tools."""
    return all(function.strict is False for function in tools.functions)


def _calls(gateway: Gateway, parser: str, tools: ToolUse) -> CallFormat:
    if tools.mode is ToolMode.NONE:
        return formats.content
    if tools.mode is ToolMode.REQUIRED:
        return _forced_calls(tools)
    calls = call_format(parser, tools.functions)
    if calls is None:
        raise InvalidRequest(
            f"{tools.field}: gateway.tool_parser is none here, so no calls are looked for; "
            'set it to auto, or tool_choice to "required" or a function',
            field=tools.field,
        )
    return calls


def _calls_in_messages(tools: ToolUse) -> CallFormat:
    if tools.mode is ToolMode.REQUIRED:
        return harmony.in_answer(_forced_calls(tools))
    return harmony.answers if tools.mode is ToolMode.NONE else harmony.messages


def _forced_calls(tools: ToolUse) -> CallFormat:
    if tools.forced_name is None:
        return formats.forced_calls
    is_text = tools.text_rule is not None
    return (formats.forced_text if is_text else formats.forced_call)(tools.forced_name)


def _other_calls(
    parser: str, conversation: Conversation, special_by_mark: Mapping[str, int]
) -> str | None:
    """The grammar of calls that the model may make in place of an answer with a rule."""
    rule, tools = conversation.rule, conversation.tools
    if rule is None or tools.mode is not ToolMode.AUTO:
        return None
    calls = calls_grammar(parser, tools, special_by_mark)
    if calls is None:
        raise InvalidRequest(
            f"{rule.field} does not let this model call tools; set tool_choice to none or required",
            field=rule.field,
        )
    return calls
