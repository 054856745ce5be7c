"""Grammars of whole outputs, for formats in which only the beginning sets a call apart from text.

    llama3    {"name": "f", "parameters": {...}}; {...}
    llama4    [f(city="Paris", days=3), g()], or as llama3
    harmony   <|channel|>commentary to=functions.f <|constrain|>json<|message|>{...}

A Llama answer may itself be JSON; it is a call once it begins with the name of a tool.
"""

from __future__ import annotations

import keyword
from collections.abc import Collection, Mapping

from baton.gateway.chat.functions import NO_PARAMETERS
from baton.gateway.chat.lark import (
    ANY,
    COMMA,
    in_regex,
    json_of,
    members,
    not_begun,
    quoted,
    tokens,
)
from baton.gateway.chat.tool_definitions import ToolUse
from baton.gateway.chat.value_rules import required_of
from baton.gateway.grammars.answer_grammar import written_mark
from baton.gateway.output import formats, harmony
from baton.gateway.output.python_calls import PYTHON_BEGIN, PYTHON_END

SpecialByMark = Mapping[str, int]

OBJECT, LIST = r"[ \n\t]*\{", r"[ \n\t]*\["
SPACE = r"[ \n]{0,4}"
JSON_NAME = r"[ \n\t]*\"name\"[ \n\t]*:[ \n\t]*\"%s\""
PYTHON_NAME = r"[ \n\t]*%s\("


def llama3_output(
    tools: ToolUse, special_by_mark: SpecialByMark, other_special: Collection[int]
) -> str:
    """A rule `calls`, in Lark's notation."""
    begins, begun = _marked(formats.LLAMA3_TAG, "OBJECT json_calls", special_by_mark)
    return "\n".join(
        (
            f"calls: {_free(other_special)} | OBJECT (json_calls TAIL | OTHER) | {begun} TAIL",
            f"FREE: {not_begun('|'.join((OBJECT, *begins)))}",
            *_json_rules(tools),
        )
    )


def llama4_output(
    tools: ToolUse, special_by_mark: SpecialByMark, other_special: Collection[int]
) -> str | None:
    """A rule `calls`, in Lark's notation. None where arguments could not be written as Python."""
    arguments = [_python_arguments(tools, index) for index in range(len(tools.functions))]
    calls: list[str] = []
    for index, rules in enumerate(arguments):
        if rules is None:
            return None
        name = in_regex(tools.functions[index].name)
        calls += [f"NAMED{index}: /{PYTHON_NAME % name}/", *rules]
    some = " | ".join(f'NAMED{i} python{i} ")"' for i in range(len(tools.functions)))
    more = r" (/[ \n\t]*,/ python)*" if tools.is_parallel else ""
    both = "(OBJECT json_calls | LIST python_calls)"
    begins, begun = _marked(PYTHON_BEGIN, both, special_by_mark)
    end = written_mark(PYTHON_END, special_by_mark)
    first = "OBJECT (json_calls TAIL | OTHER) | LIST (python_calls REST | NO_CALL)"
    return "\n".join(
        (
            f"calls: {_free(other_special)} | {first} | {begun} {end}?",
            f"FREE: {not_begun('|'.join((OBJECT, LIST, *begins)))}",
            f"LIST: /{LIST}/",
            f"NO_CALL: {not_begun(PYTHON_NAME % _any_name(tools))}",
            rf"python_calls: python{more} /[ \n\t]*\]/",
            f"python: {some}",
            *calls,
            *_json_rules(tools),
        )
    )


def harmony_output(tools: ToolUse, special_by_mark: SpecialByMark) -> str | None:
    """A rule `calls`, in Lark's notation: reasoning, commentary for the user, then the answer or a
    call. None where the marks are plain text, so that the end of a message cannot be recognised."""
    if not {*harmony.MARKERS} <= special_by_mark.keys():
        return None
    start, channel, constrain, message, end = (
        written_mark(mark, special_by_mark) for mark in harmony.MARKERS
    )
    more = f'{end} {start} "assistant"'
    called = [f"to{index} body{index}" for index in range(len(tools.functions))]
    kind = f'(" "? {constrain} "json" | " json" | " code")? " "?'
    lines = []
    for index, function in enumerate(tools.functions):
        to = quoted(f" to=functions.{function.name}")
        early = f'{to} {channel} ("commentary" | "analysis")'
        lines += [
            f'to{index}: {channel} ("commentary" | "analysis") {to} | {early}',
            f"body{index}: {kind} {message} arguments{index}",
            f"arguments{index}: {json_of(function.parameters or NO_PARAMETERS)}",
        ]
    shown = f'({channel} ("analysis" | "commentary") {message} TEXT {more})*'
    return "\n".join(
        (
            f'calls: ANSWER | {shown} ({channel} "final" {message} TEXT | {" | ".join(called)})',
            f"TEXT: {ANY}",
            f"ANSWER: {not_begun(' ?to=functions')}",
            *lines,
        )
    )


def _marked(mark: str, calls: str, special_by_mark: SpecialByMark) -> tuple[tuple[str, ...], str]:
    """An output that begins with a call mark spelled as text, and the calls after it."""
    if mark in special_by_mark:
        return (), f"{written_mark(mark, special_by_mark)} {calls}"
    begin = rf"[ \n\t]*{in_regex(mark)}"
    return (begin,), f"/{begin}/ {calls}"


def _free(other_special: Collection[int]) -> str:
    """An output without calls; after a special token, nothing counts as one."""
    return f"FREE ({tokens(other_special)} REST)*" if other_special else "FREE"


def _json_rules(tools: ToolUse) -> list[str]:
    """`json_calls` after the bracket, text that cannot begin a call there, and the text after
    calls."""
    indices = range(len(tools.functions))
    more = r" (/[ \n\t]*(;[ \n\t]*)?\{/ json_call)*" if tools.is_parallel else ""
    rules = [
        f"OBJECT: /{OBJECT}/",
        f"REST: {ANY}",
        f"OTHER: {not_begun(JSON_NAME % _any_name(tools))}",
        r"TAIL: /[ \n\t]*([^ \n\t;{](?s:.*))?/",
        f"json_calls: json_call{more}",
        f"json_call: ({' | '.join(f'NAME{i} PARAMETERS given{i}' for i in indices)}) CLOSE",
        rf"PARAMETERS: /{SPACE},{SPACE}\"(parameters|arguments)\"{SPACE}:{SPACE}/",
        rf"CLOSE: /{SPACE}\}}/",
    ]
    for index, function in enumerate(tools.functions):
        rules += [
            f"NAME{index}: /{JSON_NAME % in_regex(function.name)}/",
            f"given{index}: {json_of(function.parameters or NO_PARAMETERS)}",
        ]
    return rules


def _python_arguments(tools: ToolUse, index: int) -> list[str] | None:
    """Keyword arguments in the order of the schema; values are JSON's, with True, False and
    None."""
    schema = tools.functions[index].parameters or NO_PARAMETERS
    if (required := required_of(schema)) is None:
        return None
    kept = {key: schema[key] for key in ("$defs", "definitions") if key in schema}
    rules, items = [], []
    for number, (key, value) in enumerate(schema["properties"].items()):
        if not (key.isascii() and key.isidentifier()) or keyword.iskeyword(key):
            return None
        name = f"keyword{index}_{number}"
        whole = {**value, **kept} if isinstance(value, dict) else value
        rules.append(f"{name}: {json_of(whole)}")
        items.append((f"{quoted(f'{key}=')} {name}", key in required))
    return [*rules, *members(f"python{index}", items, COMMA)]


def _any_name(tools: ToolUse) -> str:
    return f"({'|'.join(in_regex(function.name) for function in tools.functions)})"
