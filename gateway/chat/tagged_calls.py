"""Grammar rules of calls with tagged arguments: Qwen3-Coder, GLM, DeepSeek V3.2.

    tagged       one call, behind what names it a call
    tagged0      that of the first function
    value0_1     the value of its second argument, and the tag that ends it

Arguments come in the order of their schema. Texts stand as they are, other values are JSON.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from baton.gateway.chat.functions import NO_PARAMETERS
from baton.gateway.chat.lark import ANY, BREAK, NotHeld, in_regex, json_of, quoted, without
from baton.gateway.chat.tool_definitions import ToolUse
from baton.gateway.chat.value_rules import (
    OF_ANY_PART,
    ValueRules,
    any_text_fits,
    required_of,
    words_of,
)
from baton.gateway.grammars.answer_grammar import written_mark
from baton.gateway.output import xml_calls
from baton.gateway.output.formats import HERMES_END
from baton.gateway.output.typed_arguments import TEXT, types_of
from baton.gateway.output.xml_calls import DSML

SpecialByMark = Mapping[str, int]
LINE = "\n"
TEXT_OR_NULL = TEXT | {"null"}

JSON_TEXT = r'/"([^"\\\x00-\x1f\x7f]|\\["\\nrtbf])*"/'


@dataclass(frozen=True, slots=True, kw_only=True)
class _Tags:
    call: Callable[[str, str], str]
    """Builds the text after the mark of a call from a function's name and its arguments."""
    key: Callable[[str, bool], str]
    """The tag of an argument, which may be a text."""
    end: str
    text: tuple[str, ...]
    """The rule `any_text`, a text and its end, with the rules that it needs."""
    spelled_ends: Sequence[str] = ()
    """End marks that are plain text: they end a value wherever they appear."""
    has_quoted_texts: bool = False
    """A value may be JSON even where its schema allows strings."""


def tagged_calls(
    name: str, tools: ToolUse, special_by_mark: SpecialByMark
) -> tuple[str, ...] | None:
    """None where a schema cannot be expressed."""
    tags = _TAGS[name](special_by_mark)
    rules = ["tagged: " + " | ".join(f"tagged{index}" for index in range(len(tools.functions)))]
    rules += tags.text
    if tags.spelled_ends:
        without_end = f"~/(?s:.*)({'|'.join(map(in_regex, tags.spelled_ends))})(?s:.*)/"
        rules.append(f"TEXT_IN_JSON: {JSON_TEXT} & {without_end}")
    for index, function in enumerate(tools.functions):
        schema = function.parameters or NO_PARAMETERS
        required = required_of(schema)
        if required is None:
            return None
        written = []
        for number, (key, value) in enumerate(schema["properties"].items()):
            rule = f"value{index}_{number}"
            if (found := _value(rule, value, schema, tags)) is None:
                return None
            lines, is_text = found
            rules += lines
            argument = f"({tags.key(key, is_text)} {rule})"
            written.append(argument if key in required else f"{argument}?")
        rules.append(f"tagged{index}: {tags.call(function.name, ' '.join(written))}")
    return tuple(rules)


def _value(
    rule: str, schema: Any, root: Mapping[str, Any], tags: _Tags
) -> tuple[list[str], bool] | None:
    """The rules of a value, and whether it is a plain text."""
    types = types_of(schema, root)
    if words := words_of(schema, types):
        return [f"{rule}: ({' | '.join(map(quoted, words))}) {tags.end}"], True
    if (not types or (types <= TEXT_OR_NULL and "string" in types)) and any_text_fits(schema):
        return [f"{rule}: any_text"], True
    if not types or ("string" in types and not tags.has_quoted_texts):
        return None
    value = {**schema, **{key: root[key] for key in ("$defs", "definitions") if key in root}}
    json = [f"{rule}_json: {json_of(value)}"]
    if tags.spelled_ends and not types.isdisjoint(OF_ANY_PART):
        json = _json_without_end(f"{rule}_json", schema, root) or json
    return [f"{rule}: {rule}_json {tags.end}", *json], False


def _json_without_end(rule: str, schema: Any, root: Mapping[str, Any]) -> list[str] | None:
    """JSON whose strings do not contain an end mark. None where such rules cannot be made: then the
    strings may contain it."""
    rules = ValueRules(
        root=root,
        text="TEXT_IN_JSON",
        word=lambda word: quoted(quoted(word)),
        key=lambda key: f"{quoted(quoted(key))} /: ?/",
    )
    try:
        rules.value(rule, schema)
    except NotHeld:
        return None
    return rules.lines


def _qwen3_coder(special_by_mark: SpecialByMark) -> _Tags:
    end = quoted(f"{LINE}{xml_calls.PARAMETER_END}{LINE}")
    # Texts that a parser would read as ended too early, or as never ended.
    ends = (xml_calls.PARAMETER_END, xml_calls.PARAMETER, xml_calls.FUNCTION_END)
    return _Tags(
        call=lambda name, arguments: f'{quoted(f"{name}>{LINE}")} {arguments} "</function>"',
        key=lambda key, _: quoted(f"{xml_calls.PARAMETER}{key}>{LINE}"),
        end=end,
        spelled_ends=ends,
        text=(f"any_text[suffix={end}]: {without(ends)}",),
    )


def _glm(special_by_mark: SpecialByMark) -> _Tags:
    def mark(text: str) -> str:
        return written_mark(text, special_by_mark)

    def key(name: str, _: bool) -> str:
        begin = f"{mark(xml_calls.KEY)} {quoted(name)} {mark(xml_calls.KEY_END)}"
        return f"{begin} {BREAK} {mark(xml_calls.VALUE)}"

    end = f"{mark(xml_calls.VALUE_END)} {BREAK}"
    others = [one for one in (xml_calls.KEY, HERMES_END) if one not in special_by_mark]
    is_special = xml_calls.VALUE_END in special_by_mark

    suffix = f"ended_text[suffix={quoted(xml_calls.VALUE_END)}]"
    text = (f"any_text: ended_text {BREAK}", f"{suffix}: {without(others)}")
    if is_special:
        text = (f"any_text: ANY_TEXT {end}", f"ANY_TEXT: {without(others)}")

    return _Tags(
        call=lambda name, arguments: f"{quoted(name)} {BREAK} {arguments}",
        key=key,
        end=end,
        spelled_ends=others if is_special else (xml_calls.VALUE_END, *others),
        text=text,
    )


def _deepseek_v32(special_by_mark: SpecialByMark) -> _Tags:
    def key(name: str, is_text: bool) -> str:
        flag = "true" if is_text else "false"
        tag = f'{xml_calls.DSML_KEY}"{name}" string="{flag}">'
        return dsml(tag, special_by_mark)

    end = dsml(xml_calls.DSML_KEY_END, special_by_mark)

    suffix = f"ended_text[suffix={quoted(xml_calls.DSML_KEY_END)}]"
    text = (f"any_text: ended_text {BREAK}", f"{suffix}: {ANY}")
    if DSML in special_by_mark:
        before, behind = xml_calls.DSML_KEY_END.split(DSML)
        ended = f"{written_mark(DSML, special_by_mark)} {quoted(behind)} {BREAK}"
        text = (f"any_text: BEGUN_TEXT {ended}", f"BEGUN_TEXT: /(?s:.*){in_regex(before)}/")

    def call(name: str, arguments: str) -> str:
        end_of_call = dsml(xml_calls.DSML_CALL_END, special_by_mark)
        begin = quoted(f'"{name}">')
        return f"{begin} {BREAK} {arguments} {end_of_call}"

    return _Tags(
        call=call,
        key=key,
        end=f"{end} {BREAK}",
        spelled_ends=() if DSML in special_by_mark else (xml_calls.DSML_KEY_END,),
        text=text,
        has_quoted_texts=True,
    )


def dsml(text: str, special_by_mark: SpecialByMark) -> str:
    """A DeepSeek tag, whose mark in the middle may be a special token."""
    if DSML not in special_by_mark:
        return quoted(text)
    before, behind = text.split(DSML)
    return f"{quoted(before)} {written_mark(DSML, special_by_mark)} {quoted(behind)}"


_TAGS: Mapping[str, Callable[[SpecialByMark], _Tags]] = {
    "qwen3_coder": _qwen3_coder,
    "glm": _glm,
    "deepseek_v32": _deepseek_v32,
}
