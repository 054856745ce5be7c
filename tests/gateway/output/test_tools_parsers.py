"""Tool calls and reasoning are found in a model's text, however it comes, and nothing is lost."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest

from baton.gateway.output import formats, gemma_calls, harmony, python_calls, xml_calls
from baton.gateway.output.formats import CallFormat
from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import (
    CallArguments,
    CallStart,
    Content,
    Piece,
    Reasoning,
)
from baton.gateway.output.reasoning import ReasoningStart

TOOLS = frozenset({"f", "get_weather"})
SCHEMAS: dict[str, dict[str, Any] | None] = {
    "f": None,
    "get_weather": {
        "type": "object",
        "properties": {
            "city": {"type": "string"},
            "days": {"anyOf": [{"type": "integer"}, {"type": "null"}]},
            "where": {"type": "object"},
            "unit": {"$ref": "#/$defs/Unit"},
        },
        "$defs": {"Unit": {"enum": ["C", "F"]}},
    },
}
FORMATS: dict[str, CallFormat] = {
    "content": formats.content,
    "hermes": formats.hermes,
    "llama3": formats.llama3(TOOLS),
    "deepseek": formats.deepseek,
    "forced": formats.forced_calls,
    "forced one": formats.forced_call("f"),
    "harmony": harmony.messages,
    "harmony without tools": harmony.answers,
    "harmony, forced": harmony.in_answer(formats.forced_calls),
    "mistral": formats.mistral,
    "kimi": formats.kimi,
    "phi": formats.phi,
    "qwen3_coder": xml_calls.qwen3_coder(SCHEMAS),
    "glm": xml_calls.glm(SCHEMAS),
    "deepseek_v32": xml_calls.deepseek_v32,
    "llama4": python_calls.llama4(SCHEMAS),
    "gemma": gemma_calls.gemma(SCHEMAS),
}
V3_CALL = f"{formats.CALL_BEGIN}function{formats.SEPARATOR}%s\n```json\n%s\n```{formats.CALL_END}"
V31_CALL = f"{formats.CALL_BEGIN}%s{formats.SEPARATOR}%s{formats.CALL_END}"
CALLS = f"{formats.CALLS_BEGIN}%s{formats.CALLS_END}"


def parsed(
    name: str,
    pieces: Sequence[str],
    *,
    reasoning: ReasoningStart = ReasoningStart.NOWHERE,
    max_calls: int | None = None,
    is_cut: bool = False,
    at_stop: bool = False,
) -> list[Piece]:
    """Neighbours of one kind are one piece."""
    ids = map(str, itertools.count())
    parser = OutputParser(
        FORMATS[name], reasoning=reasoning, max_calls=max_calls, call_id=lambda: next(ids)
    )
    found = [piece for text in pieces for piece in parser.feed(text)]
    return joined(found + parser.finish(is_cut=is_cut, at_stop=at_stop))


def joined(pieces: Sequence[Piece]) -> list[Piece]:
    result: list[Piece] = []
    for piece in pieces:
        last = result[-1] if result else None
        if isinstance(piece, Content) and isinstance(last, Content):
            result[-1] = Content(last.text + piece.text)
        elif isinstance(piece, Reasoning) and isinstance(last, Reasoning):
            result[-1] = Reasoning(last.text + piece.text)
        elif isinstance(piece, CallArguments) and isinstance(last, CallArguments):
            result[-1] = CallArguments(last.index, last.text + piece.text)
        else:
            result.append(piece)
    return result


def call(index: int, name: str, arguments: str) -> list[Piece]:
    return [CallStart(index, str(index), name), CallArguments(index, arguments)]


def hermes_call(name: str, arguments: str) -> str:
    return f'<tool_call>\n{{"name": "{name}", "arguments": {arguments}}}\n</tool_call>'


def test_hermes_calls_between_text() -> None:
    arguments = '{"a": [1, "}"]}'
    text = f"Let me see.\n{hermes_call('f', '{}')}\n{hermes_call('g', arguments)}\nDone."

    assert parsed("hermes", [text]) == [
        Content("Let me see."),
        *call(0, "f", "{}"),
        *call(1, "g", arguments),
        Content("Done."),
    ]


def test_the_arguments_of_a_call_come_as_they_are_written() -> None:
    parser = OutputParser(formats.hermes)
    head = parser.feed('<tool_call>{"name": "f", "arguments": {"city": "Par')

    assert [type(piece) for piece in head] == [CallStart, CallArguments]
    assert parser.feed("is") == [CallArguments(0, "is")]
    assert parser.feed('"}') == [CallArguments(0, '"}')]
    assert parser.feed("}</tool_call>") == parser.finish() == []


CUT: dict[str, tuple[str, int]] = {
    "hermes": (f"{hermes_call('f', '{}')}\n{hermes_call('get_weather', '{}')}", 2),
    "llama3": (
        '<|python_tag|>{"name": "f", "parameters": {}}; {"name": "f", "parameters": {}}',
        14,
    ),
    "deepseek": (CALLS % (V3_CALL % ("f", "{}") + V31_CALL % ("f", "{}")), 2),
    "forced": ('[{"name": "f", "parameters": {}}, {"name": "f", "parameters": {}}]', 0),
}
"""Calls, and the characters that they begin with like others do."""


@pytest.mark.parametrize("name", CUT)
def test_a_call_that_the_limit_of_the_output_cuts_never_shows_as_text(name: str) -> None:
    text, num_unsure = CUT[name]

    for end in range(num_unsure, len(text)):
        parser = OutputParser(FORMATS[name])
        pieces = [*parser.feed(text[:end]), *parser.finish(is_cut=True)]
        shown = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        assert shown in ("", "<"), text[:end]  # one character is no sign of a call


def test_a_text_that_only_ends_like_a_call_keeps_its_end() -> None:
    for text, is_cut in (("a<tool_call>\n{", False), ("a <", True), ("a<tool_call> b", True)):
        parser = OutputParser(formats.hermes)
        assert joined([*parser.feed(text), *parser.finish(is_cut=is_cut)]) == [Content(text)]


def test_only_what_may_be_a_marker_is_held_back() -> None:
    parser = OutputParser(formats.hermes)

    assert parser.feed("a < b, <tool") == [Content("a < b,")]
    assert parser.feed("box>") == [Content(" <toolbox>")]


@pytest.mark.parametrize(
    ("written", "arguments"),
    [
        ('{"arguments": {"a": 1}, "name": "f"}', '{"a": 1}'),
        ('{"id": [1, {}], "name": "f", "arguments": {"a": 1}, "x": null}', '{"a": 1}'),
        ('{"name": "f", "parameters": {"a": 1}}', '{"a": 1}'),
        ('{"name": "f", "arguments": "{\\"a\\": 1}"}', '{"a": 1}'),
        ('{"name": "f", "arguments": null}', "{}"),
        ('{"name": "f"}', "{}"),
    ],
)
def test_other_ways_to_write_a_call(written: str, arguments: str) -> None:
    assert parsed("hermes", [f"<tool_call>{written}</tool_call>"]) == call(0, "f", arguments)


@pytest.mark.parametrize(
    "text",
    [
        "<tool_call>",
        "<tool_call>\nnothing\n</tool_call>",
        '<tool_call>{"name": "f"',
        '<tool_call>{"name": 3, "arguments": {}}</tool_call> and on',
        '<tool_call>{"name": "f", "arguments": [1]}</tool_call>',
        '<tool_call>{"name": "", "arguments": {}}</tool_call>',
        '<tool_call>{"arguments": {}}</tool_call>',
        '<tool_call>{"name": "f", "arguments": {"a": 1]}</tool_call>'[:30],
        '<tool_call>{"' + "x" * 70_000 + '": 1, "name": "f", "arguments": {}}</tool_call>',
    ],
)
def test_what_is_no_call_is_content(text: str) -> None:
    assert parsed("hermes", [text]) == [Content(text)]


def test_a_call_that_is_cut_short_keeps_what_it_has() -> None:
    pieces = parsed("hermes", ['<tool_call>{"name": "f", "arguments": {"a": "b'])

    assert pieces == call(0, "f", '{"a": "b')


def test_a_call_that_breaks_off_ends_at_the_marker() -> None:
    text = f'<tool_call>{{"name": "f", "arguments": {{"a": 1</tool_call>{hermes_call("g", "{}")}'

    pieces = parsed("hermes", [text])

    assert pieces == [*call(0, "f", '{"a": 1'), Content("</tool_call>"), *call(1, "g", "{}")]


@pytest.mark.parametrize("tag", ["", "<|python_tag|>"])
def test_llama3_calls(tag: str) -> None:
    text = f'{tag}{{"name": "f", "parameters": {{"a": 1}}}}; {{"name": "f", "parameters": {{}}}}'

    assert parsed("llama3", [text]) == call(0, "f", '{"a": 1}') + call(1, "f", "{}")


@pytest.mark.parametrize(
    "text",
    [
        'Here: {"name": "f", "parameters": {}}',
        '{"name": "Bob", "parameters": {}}',
        '{"answer": 42}',
        ' \n{"name": "f", "parameters": {}'[:20],
        '<|python_tag|>brave_search.call(query="x")',
    ],
)
def test_llama3_answers(text: str) -> None:
    assert parsed("llama3", [text]) == [Content(text)]


def test_a_tagged_llama3_call_may_be_of_any_tool() -> None:
    text = '<|python_tag|>{"name": "other", "parameters": {}}'

    assert parsed("llama3", [text]) == call(0, "other", "{}")


@pytest.mark.parametrize("form", [V3_CALL, V31_CALL])
def test_deepseek_calls(form: str) -> None:
    calls = form % ("f", '{"a": "```"}') + "\n" + form % ("function", "{}")

    pieces = parsed("deepseek", ["Well.\n\n" + CALLS % calls + "\nSo."])

    expected = [Content("Well."), *call(0, "f", '{"a": "```"}'), *call(1, "function", "{}")]
    assert pieces == [*expected, Content("So.")]


@pytest.mark.parametrize("text", [CALLS % "none", V3_CALL % ("", "{}"), V31_CALL % ("f", "1")])
def test_what_is_no_deepseek_call_is_content(text: str) -> None:
    assert parsed("deepseek", [text]) == [Content(text)]


def test_forced_calls() -> None:
    text = '[{"name": "f", "parameters": {"a": 1}}, {"name": "g", "parameters": {}}]'

    assert parsed("forced", [text]) == call(0, "f", '{"a": 1}') + call(1, "g", "{}")
    assert parsed("forced one", ['{"a"', ": 1}"]) == call(0, "f", '{"a": 1}')


def test_calls_beyond_the_limit_are_left_out() -> None:
    text = hermes_call("f", "{}") + hermes_call("g", '{"a": 1}')

    assert parsed("hermes", [text], max_calls=1) == call(0, "f", "{}")


@pytest.mark.parametrize(
    ("start", "text", "pieces"),
    [
        ("first", "<think>\nHm.\n</think>\n\nYes.", [Reasoning("Hm."), Content("Yes.")]),
        ("first", "Yes. <think>no</think>", [Content("Yes. <think>no</think>")]),
        ("first", "  Yes.", [Content("  Yes.")]),
        ("open", "Hm.</think>Yes.", [Reasoning("Hm."), Content("Yes.")]),
        ("open", "<think>Hm.</think>Yes.", [Reasoning("Hm."), Content("Yes.")]),
        ("open", "Hm. </thin", [Reasoning("Hm. </thin")]),
        ("nowhere", "<think>Hm.</think>", [Content("<think>Hm.</think>")]),
    ],
)
def test_reasoning(start: str, text: str, pieces: list[Piece]) -> None:
    assert parsed("content", [text], reasoning=ReasoningStart(start)) == pieces


def test_calls_are_looked_for_behind_the_reasoning() -> None:
    text = f"I may {hermes_call('f', '{}')}</think>\n\n{hermes_call('g', '{}')}"

    pieces = parsed("hermes", [text], reasoning=ReasoningStart.OPEN)

    assert pieces == [Reasoning(f"I may {hermes_call('f', '{}')}"), *call(0, "g", "{}")]


def test_where_reasoning_ends() -> None:
    parser = OutputParser(formats.content, reasoning=ReasoningStart.FIRST)
    parser.feed("<think>Hm.")
    during = parser.reasoning_end
    parser.feed("</think> Yes.")

    assert during == float("inf")
    assert parser.reasoning_end == len("<think>Hm.</think>")
