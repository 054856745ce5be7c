"""Which format a model's calls have, read off its chat template."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from baton.gateway.chat.functions import NO_PARAMETERS
from baton.gateway.chat.tool_definitions import ToolUse
from baton.gateway.grammars.answer_grammar import NO_SPECIAL, json_body, written_mark
from baton.gateway.output import harmony
from baton.gateway.output.formats import (
    CALLS_BEGIN,
    HERMES_BEGIN,
    HERMES_END,
    LLAMA3_TAG,
    CallFormat,
    deepseek,
    hermes,
    llama3,
)

GENERIC = "generic"
"""Nothing is known: generic_tools.py."""
FOREIGN_SIGNS = ("<function=", "<arg_key>")
"""Signs of formats that use the mark of hermes for something else."""


def format_name(parser: str, template: str) -> str:
    """`parser` is the setting gateway.tool_parser. `GENERIC` if no format is known."""
    if parser != "auto":
        return parser
    if harmony.CHANNEL in template:
        return "harmony"
    if any(sign in template for sign in FOREIGN_SIGNS):
        return GENERIC
    if HERMES_BEGIN in template:
        return "hermes"
    if CALLS_BEGIN in template:
        return "deepseek"
    if LLAMA3_TAG in template or ('"parameters"' in template and "ipython" in template):
        return "llama3"
    return GENERIC


def call_format(name: str, tools: Collection[str]) -> CallFormat | None:
    match name:
        case "hermes" | "generic":
            return hermes
        case "llama3":
            return llama3(tools)
        case "deepseek":
            return deepseek
        case "harmony":
            return harmony.messages
    return None


def calls_grammar(
    name: str, tools: ToolUse, special_by_mark: Mapping[str, int] = NO_SPECIAL
) -> str | None:
    """Calls as the model writes them, for `answer_grammar`. None where it is not known how."""
    separator = {"hermes": r'"\n"', "generic": r'"\n"', "llama3": '"; "'}.get(name)
    more = f" ({separator} call)*" if tools.is_parallel else ""
    match name:
        case "hermes" | "generic":
            called = json_body(tools.call_schema("arguments"))
            begin = written_mark(HERMES_BEGIN, special_by_mark)
            end = written_mark(HERMES_END, special_by_mark)
            call = f'call: {begin} "\\n" called "\\n" {end}'
            return f"calls: call{more}\n{call}\ncalled: {called}"
        case "llama3":
            called = json_body(tools.call_schema("parameters"))
            return f"calls: call{more}\ncall: {called}"
        case "harmony":
            return _harmony_call(tools, special_by_mark)
    return None


def optional_calls(tools: ToolUse, special_by_mark: Mapping[str, int] = NO_SPECIAL) -> str:
    """Any text, and calls in Hermes' format that fit their schemas: `calls` of a whole output."""
    called = json_body(tools.call_schema("arguments"))
    begin, end = (written_mark(mark, special_by_mark) for mark in (HERMES_BEGIN, HERMES_END))
    if HERMES_BEGIN in special_by_mark:  # which text cannot spell
        text, rest = f"text: ANY {begin}\nANY: /(?s:.*)/", "REST: /(?s:.*)/"
    else:
        text = f'text[suffix="{HERMES_BEGIN}"]: /(?s:.*)/'
        rest = f"REST: ~/(?s:.*){HERMES_BEGIN}(?s:.*)/"
    some = "(text call)*" if tools.is_parallel else "(text call)?"
    call = f'call: "\\n" called "\\n" {end}'
    return f"calls: {some} REST\n{text}\n{rest}\n{call}\ncalled: {called}"


def _harmony_call(tools: ToolUse, special_by_mark: Mapping[str, int]) -> str:
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
