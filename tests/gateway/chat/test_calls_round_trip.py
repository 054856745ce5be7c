"""Whatever a grammar of calls lets a model write, the format's parser reads as calls that fit."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from llguidance import LLMatcher
from tests.gateway.scripted import eos_token, text_tokenizer
from tokenizers import AddedToken, Tokenizer

from baton.core.sampling import Grammar, GrammarKind
from baton.engine.grammar.grammar_check import GrammarChecker, next_tokens
from baton.gateway.chat.call_grammars import optional_calls
from baton.gateway.chat.functions import Function
from baton.gateway.chat.tool_definitions import ToolMode, ToolUse
from baton.gateway.chat.tool_detection import MARKERS, call_format
from baton.gateway.output import formats
from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import CallArguments, CallStart, Content
from baton.gateway.output.xml_calls import DSML

STREET: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string"}, "number": {"type": "integer"}},
    "required": ["name"],
    "additionalProperties": False,
}
FUNCTIONS = (
    Function(
        name="get_weather",
        parameters={
            "type": "object",
            "properties": {
                "city": {"type": "string", "description": "Any."},
                "days": {"type": "integer", "minimum": 1, "maximum": 14},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "near": {"anyOf": [{"type": "string"}, {"type": "null"}]},
                "exact": {"type": "boolean"},
            },
            "required": ["city", "days"],
            "additionalProperties": False,
        },
    ),
    Function(
        name="get_weathers",
        parameters={
            "type": "object",
            "properties": {
                "streets": {"type": "array", "items": STREET},
                "where": {**STREET, "description": "One."},
                "hours": {"type": "array", "items": {"type": "number"}},
            },
            "required": ["where"],
            "additionalProperties": False,
        },
    ),
    Function(name="now"),
)
TOOLS = ToolUse(functions=FUNCTIONS, mode=ToolMode.AUTO)
CASES: Mapping[str, str] = {
    "hermes": "Well: <tool_call>",
    "mistral": formats.MISTRAL_CALLS,
    "phi": formats.PHI_CALLS,
    "phi, bare": "So functools[",
    "kimi": formats.KIMI_CALLS,
    "deepseek": formats.CALLS_BEGIN,
    "qwen3_coder": "<tool_call>",
    "glm": "Well.\n<tool_call>",
    "deepseek_v32": f"<{DSML}function_calls>",
    "deepseek_v32, bare": f"I: <{DSML}invoke name=",
    "gemma": "<start_function_call>",
    "gemma, 4": "<|tool_call>",
    "llama3": '\n{ "name":"get_weather"',
    "llama3, tag": "<|python_tag|>",
    "llama4": "[get_weathers(",
    "llama4, mark": "<|python_start|>",
    "llama4, json": '{"name": "now"',
    "harmony": "<|channel|>commentary to=functions.",
    "harmony, early": " to=functions.",
    "harmony, told": "<|channel|>commentary<|message|>Soon.<|end|><|start|>assistant to=functions.",
}
"""How an output begins: what makes it a call."""
ENDS = (
    *('"', '"', '"', '"', "}", "}", "]", "]", "]", ")", "</function>", "</tool_call>"),
    *(f"</{DSML}function_calls>", f"</{DSML}invoke>", f"</{DSML}parameter>"),
    *("\n</parameter>\n", "</arg_value>", "<escape>", '<|"|>', "<end_function_call>"),
    *("<tool_call|>", "<|python_end|>", formats.CALL_END, formats.CALLS_END),
    *(formats.KIMI_CALL_END, formats.KIMI_CALLS_END, formats.PHI_CALLS_END),
)
"""Of what else goes on for as long as chance will have it."""
NUM_FREE, NUM_MOST = 60, 4000


@cache
def model(has_marks: bool) -> tuple[Tokenizer, GrammarChecker, dict[str, int], list[list[int]]]:
    """Its marks are special tokens, or text; and the tokens of `ENDS`."""
    tokenizer = Tokenizer.from_str(text_tokenizer().to_json())
    if has_marks:
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKERS])
    ids = {mark: tokenizer.token_to_id(mark) or 0 for mark in MARKERS} if has_marks else {}
    ends = [tokenizer.encode(end, add_special_tokens=False).ids for end in ENDS]
    return tokenizer, GrammarChecker(tokenizer.to_str, [eos_token()]), ids, ends


def written(case: str, *, has_marks: bool, chance: random.Random) -> str:
    """An output that the grammar allows, from the case's beginning to where it may end."""
    name = case.split(",")[0]
    tokenizer, checker, ids, ends = model(has_marks)
    calls = optional_calls(name, TOOLS, ids)
    assert calls is not None
    matcher = checker.start(Grammar(GrammarKind.LARK, f"start: calls\n{calls}"))
    tokens = tokenizer.encode(CASES[case], add_special_tokens=False).ids
    assert matcher.try_consume_tokens(tokens) == len(tokens)
    while not (matcher.is_accepting() and chance.random() < 0.7):
        assert len(tokens) < NUM_MOST, tokenizer.decode(tokens, skip_special_tokens=False)
        next_ = _end(matcher, ends, chance) if len(tokens) > NUM_FREE else []
        if not next_:
            if not (allowed := _allowed(matcher)):
                break
            next_ = [chance.choice(allowed)]
        assert matcher.try_consume_tokens(next_) == len(next_)
        tokens += next_
    return tokenizer.decode(tokens, skip_special_tokens=False)


def _end(matcher: LLMatcher, ends: list[list[int]], chance: random.Random) -> list[int]:
    for tokens in chance.sample(ends, len(ends)):
        if matcher.validate_tokens(tokens) == len(tokens):
            return tokens
    return []


def _allowed(matcher: LLMatcher) -> list[int]:
    bits = np.unpackbits(np.frombuffer(next_tokens(matcher), np.uint8), bitorder="little")
    bits[eos_token()] = 0
    found: list[int] = bits.nonzero()[0].tolist()
    return found


def read(case: str, text: str) -> tuple[str, list[tuple[str, str]]]:
    """What is said, and calls with their arguments."""
    calls = call_format(case.split(",")[0], FUNCTIONS)
    assert calls is not None
    parser = OutputParser(calls)
    said, found = "", list[tuple[str, str]]()
    for piece in parser.feed(text) + parser.finish():
        if isinstance(piece, Content):
            said += piece.text
        elif isinstance(piece, CallStart):
            found.append((piece.name, ""))
        elif isinstance(piece, CallArguments):
            found[-1] = (found[-1][0], found[-1][1] + piece.text)
    return said, found


@pytest.mark.parametrize(
    ("case", "has_marks"),
    [(case, has) for case in CASES for has in (False, True) if has or "harmony" not in case],
)
@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1 << 32))
def test_what_the_grammar_writes_the_parser_reads(case: str, has_marks: bool, seed: int) -> None:
    text = written(case, has_marks=has_marks, chance=random.Random(seed))

    _, calls = read(case, text)

    assert calls, text
    parameters = {function.name: function.parameters or {} for function in FUNCTIONS}
    for name, arguments in calls:
        jsonschema.validate(json.loads(arguments), parameters[name])


@pytest.mark.parametrize(
    ("written_hours", "is_call"),
    [("[5E787222, 1]", True), ("[-1e999]", True), ("['5', 1e999]", False)],
)
def test_numbers_beyond_floats_are_handed_on_where_they_are_json(
    written_hours: str, is_call: bool
) -> None:
    _, calls = read("llama4", f'[get_weathers(where={{"name": "x"}}, hours={written_hours})]')

    found = [arguments for _, arguments in calls]
    assert found == ([f'{{"where": {{"name": "x"}}, "hours": {written_hours}}}'] * is_call)
