"""How a model writes calls of given tools, as a grammar: in Lark's notation, a rule `calls`.

    called   a call in JSON: its name, and arguments that fit the schema
    call     the same from its mark to its end, in the model's own format

Once a mark has been written, nothing but a call that fits its schema can follow.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.gateway.chat.functions import NO_PARAMETERS
from baton.gateway.chat.tool_definitions import ToolUse
from baton.gateway.grammars.answer_grammar import NO_SPECIAL, json_body, written_mark
from baton.gateway.output import formats, harmony, xml_calls
from baton.gateway.output.formats import HERMES_BEGIN, HERMES_END
from baton.gateway.output.typed_arguments import TEXT, types_of

SpecialByMark = Mapping[str, int]
"""The marks that are special tokens of the model, which text cannot spell."""
Mark = Callable[[str], str]
"""A mark in Lark's notation."""

COMMA = '", "'
LINE = "\n"
BREAK = r"/\n?/"
PLAIN_WORDS = frozenset({"type", "description", "title", "default", "enum", "examples"})
"""What a schema of a text may say that can be held to where the text has no quotes."""

OBJECT_WORDS = frozenset(
    {
        *("type", "properties", "required", "additionalProperties", "description", "title"),
        *("$schema", "$id", "$defs", "definitions", "default", "examples"),
    }
)
"""What a schema of arguments may say that tags can be held to."""
TEXT_ENDS = (xml_calls.PARAMETER_END, xml_calls.PARAMETER, xml_calls.FUNCTION_END)
"""Where a parser takes a text for ended, or for never ended."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Writing:
    """How a model goes on behind the mark that begins a call."""

    begin: str
    rest: str
    rules: tuple[str, ...] = ()
    between: str | None = None
    """What stands before the mark of a further call; None where `rest` has all calls."""
    bare_begin: str = ""
    """What models begin calls with that forget the mark above, and parsers take for one."""
    bare_rest: str = ""


def calls_grammar(
    name: str, tools: ToolUse, special_by_mark: SpecialByMark = NO_SPECIAL
) -> str | None:
    """Calls alone, in the format `name`, for `answer_grammar`. None where it is not known how."""
    if name == "llama3":
        more = ' ("; " call)*' if tools.is_parallel else ""
        return f"calls: call{more}\ncall: {json_body(tools.call_schema('parameters'))}"
    if name == "harmony":
        return _harmony_call(tools, special_by_mark)
    writing = _writing(name, tools, special_by_mark)
    if writing is None:
        return None
    call = f"{written_mark(writing.begin, special_by_mark)} {writing.rest}"
    has_more = tools.is_parallel and writing.between is not None
    more = f" ({writing.between} call)*" if has_more else ""
    return "\n".join((f"calls: call{more}", f"call: {call}", *writing.rules))


def optional_calls(
    name: str, tools: ToolUse, special_by_mark: SpecialByMark = NO_SPECIAL
) -> str | None:
    """Any text, and calls in the format `name`: of a whole output. None where it is not known."""
    writing = _writing(name, tools, special_by_mark)
    if writing is None:
        return None
    rests = {writing.begin: writing.rest}
    if writing.bare_begin:
        rests[writing.bare_begin] = writing.bare_rest
    spelled = [begin for begin in rests if begin not in special_by_mark]
    lines = []
    for index, (begin, rest) in enumerate(rests.items()):
        if begin in special_by_mark:
            text = f"text{index}: FREE {written_mark(begin, special_by_mark)}"
        else:
            others = [other for other in spelled if other != begin]
            text = f"text{index}[suffix={_quoted(begin)}]: {_without(others)}"
        lines += [text, f"call{index}: {rest}"]
    some = "*" if tools.is_parallel and writing.between is not None else "?"
    called = " | ".join(f"text{index} call{index}" for index in range(len(rests)))
    lines += [f"FREE: {_without(spelled)}", *writing.rules]
    return "\n".join((f"calls: ({called}){some} FREE", *lines))


def _writing(name: str, tools: ToolUse, special_by_mark: SpecialByMark) -> _Writing | None:
    def mark(text: str) -> str:
        return written_mark(text, special_by_mark)

    def several(item: str, between: str) -> str:
        return f"{item} ({between} {item})*" if tools.is_parallel else item

    listed = f'"[" {several("called", COMMA)} "]"'
    match name:
        case "hermes" | "generic":
            rest = f'"\\n" called "\\n" {mark(HERMES_END)}'
            called = _called(tools)
            return _Writing(begin=HERMES_BEGIN, rest=rest, rules=called, between='"\\n"')
        case "mistral" if formats.MISTRAL_ARGUMENTS in special_by_mark:
            call_id = f"({mark(formats.MISTRAL_ID)} /[a-zA-Z0-9_-]{{1,64}}/)?"
            between = f" {call_id} {mark(formats.MISTRAL_ARGUMENTS)} "
            named = _by_name(tools, "", between, "")
            return _Writing(begin=formats.MISTRAL_CALLS, rest="named", rules=named, between="")
        case "mistral":
            rest = f"/ ?/ {listed}"
            return _Writing(begin=formats.MISTRAL_CALLS, rest=rest, rules=_called(tools))
        case "phi":
            return _Writing(
                begin=formats.PHI_CALLS,
                rest=f"{listed} {mark(formats.PHI_CALLS_END)}",
                rules=_called(tools),
                bare_begin=formats.PHI_LIST,
                bare_rest=listed.removeprefix('"[" '),
            )
        case "kimi":
            rest_of_one = f"named {mark(formats.KIMI_CALL_END)}"
            arguments = f' ":" /[0-9]{{1,4}}/ {mark(formats.KIMI_ARGUMENTS)} '
            rules = (
                f"one: {mark(formats.KIMI_CALL)} {rest_of_one}",
                *_by_name(tools, "functions.", arguments, ""),
            )
            return _Writing(
                begin=formats.KIMI_CALLS,
                rest=f"{several('one', '')} {mark(formats.KIMI_CALLS_END)}",
                rules=rules,
                bare_begin=formats.KIMI_CALL,
                bare_rest=f"{rest_of_one} one*" if tools.is_parallel else rest_of_one,
            )
        case "deepseek":
            separator = mark(formats.SEPARATOR)
            rest_of_one = f"(named | fenced) {mark(formats.CALL_END)}"
            rules = (
                f"one: {mark(formats.CALL_BEGIN)} {rest_of_one}",
                f'fenced: "function" {separator} named_in_fence "\\n```"',
                *_by_name(tools, "", f" {separator} ", ""),
                *_by_name(tools, "", ' "\\n```json\\n" ', "_in_fence", has_arguments=False),
            )
            return _Writing(
                begin=formats.CALLS_BEGIN,
                rest=f"{several('one', BREAK)} {mark(formats.CALLS_END)}",
                rules=rules,
                bare_begin=formats.CALL_BEGIN,
                bare_rest=f"{rest_of_one} ({BREAK} one)*" if tools.is_parallel else rest_of_one,
            )
        case "qwen3_coder" | "glm" if (tagged := _tagged_calls(name, tools, mark)) is not None:
            begin = "" if name == "glm" else f"{_quoted(LINE + xml_calls.FUNCTION)} "
            end = "" if name == "glm" else '"\\n" '
            return _Writing(
                begin=HERMES_BEGIN,
                rest=f"{begin}tagged {end}{mark(HERMES_END)}",
                rules=tagged,
                between='"\\n"',
                bare_begin="" if name == "glm" else xml_calls.FUNCTION,
                bare_rest="tagged",
            )
    return None


def _called(tools: ToolUse) -> tuple[str, ...]:
    return (f"called: {json_body(tools.call_schema('arguments'))}",)


def _by_name(
    tools: ToolUse, prefix: str, between: str, suffix: str, *, has_arguments: bool = True
) -> tuple[str, ...]:
    """Rules of a name and its arguments: `named`, or `named` and a suffix."""
    indices = range(len(tools.functions))
    lines = [f"named{suffix}: " + " | ".join(f"named{suffix}{index}" for index in indices)]
    for index, function in enumerate(tools.functions):
        name = _quoted(prefix + function.name)
        lines.append(f"named{suffix}{index}: {name}{between or ' '}arguments{index}")
        if has_arguments:
            lines.append(f"arguments{index}: {json_body(function.parameters or NO_PARAMETERS)}")
    return tuple(lines)


def _tagged_calls(name: str, tools: ToolUse, mark: Mark) -> tuple[str, ...] | None:
    """Arguments in the order of their schema. None where one could not be written so."""
    rules = ["tagged: " + " | ".join(f"tagged{index}" for index in range(len(tools.functions)))]
    for index, function in enumerate(tools.functions):
        schema = function.parameters or NO_PARAMETERS
        properties = schema.get("properties")
        required = schema.get("required") or ()
        if not OBJECT_WORDS.issuperset(schema) or schema.get("additionalProperties"):
            return None
        if not isinstance(properties, dict) or not isinstance(required, list | tuple):
            return None
        written = []
        for number, (key, value) in enumerate(properties.items()):
            rule = f"value{index}_{number}"
            lines = _tagged_value(rule, value, schema, _value_end(name, mark))
            if lines is None:
                return None
            rules += lines
            argument = f"({_value_begin(name, key, mark)} {rule})"
            is_required = key in required
            written.append(argument if is_required else f"{argument}?")
        rules.append(f"tagged{index}: {_in_tags(name, function.name, ' '.join(written))}")
    return tuple(rules)


def _in_tags(name: str, function: str, arguments: str) -> str:
    if name == "glm":
        return f"{_quoted(function)} {BREAK} {arguments}"
    return f'{_quoted(f"{function}>{LINE}")} {arguments} "</function>"'


def _value_begin(name: str, key: str, mark: Mark) -> str:
    if name == "glm":
        begin, end, value = (mark(m) for m in (xml_calls.KEY, xml_calls.KEY_END, xml_calls.VALUE))
        return f"{begin} {_quoted(key)} {end} {BREAK} {value}"
    return _quoted(f"{xml_calls.PARAMETER}{key}>{LINE}")


def _value_end(name: str, mark: Mark) -> tuple[str, str]:
    """In Lark's notation, and what may follow; a text is all up to it."""
    if name == "glm":
        return mark(xml_calls.VALUE_END), BREAK
    return _quoted(f"{LINE}{xml_calls.PARAMETER_END}{LINE}"), ""


def _tagged_value(
    rule: str, schema: Any, root: Mapping[str, Any], ends: tuple[str, str]
) -> list[str] | None:
    end, after = ends
    types = types_of(schema, root)
    if types and "string" not in types:
        value = {**schema, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
        return [f"{rule}: {rule}_json {end} {after}", f"{rule}_json: {json_body(value)}"]
    if not isinstance(schema, Mapping) or not PLAIN_WORDS.issuperset(schema):
        return None
    if "enum" in schema:
        values = schema["enum"] if isinstance(schema["enum"], list) else []
        words = [word for word in values if isinstance(word, str)]
        if types != TEXT or not words:
            return None
        return [f"{rule}: ({' | '.join(map(_quoted, words))}) {end} {after}"]
    if end.startswith('"'):
        return [f"{rule}: {rule}_text {after}", f"{rule}_text[suffix={end}]: {_without(TEXT_ENDS)}"]
    return [f"{rule}: {rule.upper()} {end} {after}", f"{rule.upper()}: /(?s:.*)/"]


def _harmony_call(tools: ToolUse, special_by_mark: SpecialByMark) -> str:
    """One alone: the model ends behind it."""
    channel, constrain, message = (
        written_mark(mark, special_by_mark)
        for mark in (harmony.CHANNEL, harmony.CONSTRAIN, harmony.MESSAGE)
    )
    lines = ["calls: " + " | ".join(f"call{index}" for index in range(len(tools.functions)))]
    for index, function in enumerate(tools.functions):
        header = (
            f'{channel} "commentary to=functions.{function.name} " {constrain} "json" {message}'
        )
        lines.append(f"call{index}: {header} arguments{index}")
        lines.append(f"arguments{index}: {json_body(function.parameters or NO_PARAMETERS)}")
    return "\n".join(lines)


def _quoted(text: str) -> str:
    return json.dumps(text, ensure_ascii=False)


def _without(marks: Sequence[str]) -> str:
    """Any text that has none of `marks`, as a regex of Lark's notation."""
    if not marks:
        return "/(?s:.*)/"
    # A complement alone has special tokens, too.
    return f"/(?s:.*)/ & ~/(?s:.*)({'|'.join(map(_in_regex, marks))})(?s:.*)/"


def _in_regex(mark: str) -> str:
    return re.sub(r"([\[\]|()?*+./\\])", r"\\\1", mark)
