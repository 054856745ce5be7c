"""Custom tools, which are given a text: over chats and /v1/responses, with the `openai` package."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.chat_models import (
    PARIS,
    PLAIN,
    USER,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.grammars.test_structured_output_requests import takes
from tests.gateway.scripted import MODEL, error_of, serving, text_of

from baton.core.sampling import Grammar, GrammarKind
from baton.gateway.output import formats
from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import CallArguments
from baton.gateway.storage.config import StorageConfig

QUERY = 'SELECT "a\\b"\nFROM t -- caf\u00e9 \U0001f600'
LARK = 'start: "SELECT " /[a-z]+/'
TRUSTED = "x-baton-ignored"


def custom(**wanted: Any) -> dict[str, Any]:
    """As chats have it; `wanted` is the grammar of its text."""
    tool: dict[str, Any] = {"name": "sql", "description": "Runs a query."}
    if wanted:
        tool["format"] = {"type": "grammar", "grammar": wanted}
    return {"type": "custom", "custom": tool}


def flat(**wanted: Any) -> dict[str, Any]:
    """As /v1/responses has it."""
    tool = {"type": "custom", "name": "sql", "description": "Runs a query."}
    return {**tool, "format": {"type": "grammar", **wanted}} if wanted else tool


def query_call(text: str = QUERY) -> str:
    return call_text("sql", json.dumps({"input": text}))


async def test_a_chat_streams_the_text_of_a_custom_call_beside_one_of_a_function() -> None:
    script = said(query_call() + call_text("get_weather", PARIS))
    asked = {"model": MODEL, "messages": USER, "tools": [custom(), WEATHER]}
    async with serving(dispatcher=dispatcher(script), model=chat_model()) as gateway:
        whole = await openai_of(gateway).chat.completions.create(**asked)
        stream = await openai_of(gateway).chat.completions.create(**asked, stream=True)
        chunks = [chunk async for chunk in stream]

    query, weather = whole.choices[0].message.tool_calls
    assert (query.type, query.custom.name, query.custom.input) == ("custom", "sql", QUERY)
    assert (weather.type, weather.function.arguments) == ("function", PARIS)
    deltas = [call for chunk in chunks for call in chunk.choices[0].delta.tool_calls or ()]
    texts = [delta.custom["input"] for delta in deltas if delta.index == 0]
    assert "".join(texts) == QUERY and len(texts) > 10
    assert (deltas[0].type, deltas[0].custom["name"]) == ("custom", "sql")
    assert "".join(delta.function.arguments for delta in deltas if delta.index == 1) == PARIS
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


async def test_what_a_chat_was_answered_goes_back_as_the_function_that_the_model_was_shown() -> (
    None
):
    call = {"id": "c", "type": "custom", "custom": {"name": "sql", "input": QUERY}}
    scripted = dispatcher(said("Done."))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        messages = [
            *USER,
            {"role": "assistant", "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "c", "content": "3 rows"},
        ]
        asked = {"model": MODEL, "messages": messages, "tools": [custom()]}
        await openai_of(gateway).chat.completions.create(**asked)

    prompt = text_of(scripted.generations[0].prompt)
    arguments = json.dumps({"input": QUERY}, ensure_ascii=False)
    assert f"[call sql {arguments}]<|tool|>3 rows<|assistant|>" in prompt


async def test_a_turn_of_responses_answers_a_custom_call_of_the_one_before(tmp_path: Path) -> None:
    scripted = dispatcher(said(query_call()))
    kept = StorageConfig(folder=str(tmp_path))
    async with serving(dispatcher=scripted, model=chat_model(), storage=kept) as gateway:
        client = openai_of(gateway).responses
        asked = {"model": MODEL, "tools": [flat()]}
        events = [event async for event in await client.create(**asked, input="?", stream=True)]
        first = events[-1].response
        found = {"type": "custom_tool_call_output", "call_id": first.output[0].call_id}
        found["output"] = [{"type": "input_text", "text": "3 rows"}]
        await client.create(**asked, input=[found], previous_response_id=first.id)
        items = await client.input_items.list(first.id)

    (call,) = first.output
    assert (call.type, call.name, call.input, call.status) == (
        "custom_tool_call",
        "sql",
        QUERY,
        "completed",
    )
    kinds = [event.type for event in events]
    deltas = [e.delta for e in events if e.type == "response.custom_tool_call_input.delta"]
    assert "".join(deltas) == QUERY and len(deltas) > 10
    assert kinds[:3] == [f"response.{k}" for k in ("created", "in_progress", "output_item.added")]
    assert kinds[-3:] == [
        "response.custom_tool_call_input.done",
        "response.output_item.done",
        "response.completed",
    ]
    assert events[-3].input == QUERY and first.tools[0].type == "custom"
    assert "]<|tool|>3 rows<|assistant|>" in text_of(scripted.generations[1].prompt)
    assert [item.type for item in items.data] == ["message"]


@pytest.mark.parametrize("syntax", ["regex", "lark"])
async def test_the_text_of_a_tool_that_must_be_called_is_a_sentence_of_its_grammar(
    syntax: str,
) -> None:
    definition = LARK if syntax == "lark" else "SELECT [a-z]+"
    scripted = dispatcher(said('{"input": "x"}'))
    async with serving(dispatcher=scripted, model=chat_model(PLAIN)) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL,
            messages=USER,
            tools=[WEATHER, custom(syntax=syntax, definition=definition)],
            tool_choice={"type": "custom", "custom": {"name": "sql"}},
        )
        response = await openai_of(gateway).responses.with_raw_response.create(
            model=MODEL,
            input="?",
            tools=[flat(syntax=syntax, definition=definition)],
            tool_choice="required",
        )

    (call,) = chat.choices[0].message.tool_calls
    assert call.custom.input == '{"input": "x"}'  # which nobody takes for JSON of ours
    assert response.parse().output[0].input == call.custom.input
    assert TRUSTED not in response.headers
    for generation in scripted.generations:
        assert generation.sampling.grammar == Grammar(GrammarKind(syntax), definition)


async def test_a_pattern_holds_where_a_call_is_free_and_another_grammar_is_told_not_to() -> None:
    regex = custom(syntax="regex", definition="SELECT .|DROP")
    scripted = dispatcher(said(query_call()))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        held = await gateway.chat(tools=[regex])
        trusted = await gateway.chat(tools=[custom(syntax="lark", definition=LARK)])

    assert TRUSTED not in held.headers
    grammar = scripted.generations[0].sampling.grammar
    assert grammar is not None and takes(grammar, query_call("SELECT a"))
    assert not takes(grammar, query_call("SELECT ab"))
    assert not takes(grammar, query_call("xDROP"))
    assert trusted.headers[TRUSTED] == "tools[0].custom.format.grammar.definition"
    assert json.dumps(LARK)[1:-1] in text_of(scripted.generations[1].prompt)


async def test_a_grammar_that_cannot_be_read_is_named() -> None:
    tool = custom(syntax="lark", definition="start: (")
    forced = {"type": "custom", "custom": {"name": "sql"}}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.chat(tools=[tool], tool_choice=forced)

    assert response.status_code == 400
    assert error_of(response)["param"] == "tools[0].custom.format.grammar.definition"


def read(text: str, cuts: list[int], *, is_cut: bool = False) -> str:
    """The text that a call with these arguments gives, however they are cut."""
    parser = OutputParser(formats.forced_call("sql"), custom_names={"sql"})
    ends = sorted({min(cut, len(text)) for cut in cuts} | {len(text)})
    begins = [0, *ends]
    pieces = [piece for a, b in zip(begins, ends, strict=False) for piece in parser.feed(text[a:b])]
    pieces += parser.finish(is_cut=is_cut)
    return "".join(piece.text for piece in pieces if isinstance(piece, CallArguments))


@settings(max_examples=25)
@given(
    text=st.text(st.characters(codec="utf-8")),
    cuts=st.lists(st.integers(0, 200), max_size=8),
    is_ascii=st.booleans(),
)
def test_the_text_is_what_json_says_it_is(text: str, cuts: list[int], is_ascii: bool) -> None:
    arguments = json.dumps({"input": text}, ensure_ascii=is_ascii)

    assert read(arguments, cuts) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("SELECT 1", "SELECT 1"),
        ('{"query": "a"}', '{"query": "a"}'),
        ("{", "{"),
        ('{"input": 7}', '{"input": 7}'),
        ('{"input": "half a \\u00', "half a "),
        ('{"input": "\\ud83d alone", "b": 1}', "\ufffd alone"),
        ('{"input": "\\ud83d\\n"}', "\ufffd\n"),
    ],
)
def test_a_model_that_writes_something_else_is_taken_at_its_word(arguments: str, text: str) -> None:
    assert read(arguments, [3]) == text
    assert read(arguments, list(range(len(arguments)))) == text


@pytest.mark.parametrize(
    ("arguments", "text"),
    [('{"inp', ""), ('{"input": ', ""), ('{"input": "SEL', "SEL"), ("SEL", "SEL")],
)
def test_of_a_call_that_is_cut_the_text_alone_is_given(arguments: str, text: str) -> None:
    assert read(arguments, [2], is_cut=True) == text
