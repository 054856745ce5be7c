"""However a text is cut: the same calls, and nothing lost."""

from __future__ import annotations

import itertools
import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.gateway.output.test_tools_parsers import (
    FORMATS,
    V3_CALL,
    V31_CALL,
    call,
    hermes_call,
    parsed,
)

from baton.gateway.chat.tool_detection import MARKERS
from baton.gateway.output import formats
from baton.gateway.output.pieces import CallStart
from baton.gateway.output.reasoning import ReasoningStart

FRAGMENTS = [
    *MARKERS,
    *(
        "<function=f>",
        "<parameter=a>",
        "</parameter>",
        "</function>",
        "functools[",
        "f(a=",
        "call:",
    ),
    *("<|call|>", "assistant", " to=functions.f", "<|channel|>analysis<|message|>"),
    *("<|start|>assistant<|channel|>final<|message|>", "<|channel|>commentary to=f<|message|>"),
    *("<think>", "</think>", "```", "```json", "function", "f", " ", "\n", ";", ",", "[", "]"),
    *('{"name": "f", ', '"arguments": ', '"parameters": {"a": "\\"}', "{", "}", '"', "\\", "null"),
    *('{"name": "f", "arguments": {"x": [1, "<tool_call>"]}}', "a", "<", "日本", "🦊", '{"a": 1}'),
    *(hermes_call("f", '{"a": 1}'), V3_CALL % ("f", "{}"), V31_CALL % ("f", "{}")),
]
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)


@settings(max_examples=400, deadline=None)
@example(
    text=f"{{{formats.CALL_BEGIN}}}{V3_CALL % ('f', '{}')}",
    cuts=[22],
    name="deepseek",
    start=ReasoningStart.NOWHERE,
    ending=(False, False),
)
@given(
    text=texts,
    cuts=st.lists(st.integers(0, 120), max_size=30),
    name=st.sampled_from(list(FORMATS)),
    start=st.sampled_from(ReasoningStart),
    ending=st.sampled_from([(False, False), (True, False), (True, True)]),
)
def test_cuts_change_nothing(
    text: str, cuts: list[int], name: str, start: ReasoningStart, ending: tuple[bool, bool]
) -> None:
    """`ending`: whether the output was cut, and whether by a stop string."""
    is_cut, at_stop = ending
    places = [0, *sorted(min(cut, len(text)) for cut in cuts), len(text)]
    pieces = [text[begin:end] for begin, end in itertools.pairwise(places)]

    whole = parsed(name, [text], reasoning=start, is_cut=is_cut, at_stop=at_stop)

    for parts in (pieces, list(text)):
        told = parsed(name, parts, reasoning=start, is_cut=is_cut, at_stop=at_stop)
        assert told == whole


@settings(max_examples=400, deadline=None)
@given(
    fragments=st.lists(st.sampled_from(FRAGMENTS), max_size=12),
    name=st.sampled_from(list(FORMATS)),
    start=st.sampled_from(ReasoningStart),
)
def test_no_word_of_the_text_is_lost(
    fragments: list[str], name: str, start: ReasoningStart
) -> None:
    text = "".join(f"{fragment}word{index}" for index, fragment in enumerate(fragments))

    pieces = parsed(name, [text], reasoning=start)

    shown = " ".join(p.name if isinstance(p, CallStart) else p.text for p in pieces)
    assert [f"word{index}" in shown for index in range(len(fragments))] == [True] * len(fragments)


json_objects = st.dictionaries(
    st.text(max_size=4),
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(max_size=8),
        lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=2), inner),
        max_leaves=6,
    ),
    max_size=3,
)


@settings(max_examples=100, deadline=None)
@given(
    arguments=json_objects,
    ascii_only=st.booleans(),
    indent=st.none() | st.integers(0, 2),
    form=st.sampled_from(["hermes", "llama3", "deepseek", "forced"]),
)
def test_arguments_survive(
    arguments: dict[str, object], ascii_only: bool, indent: int | None, form: str
) -> None:
    written = json.dumps(arguments, ensure_ascii=ascii_only, indent=indent)
    text = {
        "hermes": hermes_call("f", written),
        "llama3": f'{{"name": "f", "parameters": {written}}}',
        "deepseek": V3_CALL % ("f", written),
        "forced": f'[{{"name": "f", "parameters": {written}}}]',
    }[form]

    assert parsed(form, list(text)) == call(0, "f", written)


LONG = {
    "key": '<tool_call>{"' + "x" * 70_000 + '": 1, "name": "f", "arguments": {}}</tool_call>',
    "space": "<tool_call>" + " " * 70_000 + '{"name": "f", "arguments": {}}</tool_call>',
    "early arguments": '<tool_call>{"arguments": {"a": "' + "x" * 70_000 + '"}, "name": "f"}',
    "arguments": '<tool_call>{"name": "f", "arguments": {"a": "' + "x" * 70_000 + '"}}</tool_call>',
    "space before a mark": "\n" * 300 + hermes_call("f", "{}"),
    "space before reasoning": " " * 70_000 + "<think>a</think>b",
}


@pytest.mark.parametrize("name", LONG)
def test_cuts_change_nothing_where_more_comes_than_is_held(name: str) -> None:
    text = LONG[name]
    pieces = [text[begin : begin + 7] for begin in range(0, len(text), 7)]

    whole = parsed("hermes", [text], reasoning=ReasoningStart.FIRST)

    assert parsed("hermes", pieces, reasoning=ReasoningStart.FIRST) == whole
