"""An agent's turns on a model whose chat template knows no tools."""

from __future__ import annotations

import json
from typing import Any

import pytest
from tests.gateway.chat_models import (
    HERMES,
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
from tests.gateway.scripted import MODEL, eos_token, serving, text_of, text_tokenizer
from tokenizers import Tokenizer

from baton.engine.grammar.grammar_check import GrammarChecker

IN_TURNS = (
    "{% for m in messages %}{% if m.role not in ('user', 'assistant') or "
    "(m.role == 'user') != (loop.index0 % 2 == 0) %}{{ raise_exception('in turns') }}{% endif %}"
    "<|{{ m.role }}|>{{ m.content }}{% endfor %}<|assistant|>"
)
UNKNOWN = HERMES.replace("<tool_call>", "<tool_call><function=")
CALL = {
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": PARIS},
}
HISTORY = [
    *USER,
    {"role": "assistant", "content": None, "tool_calls": [CALL, {**CALL, "id": "call_2"}]},
    {"role": "tool", "tool_call_id": "call_1", "content": "12 C"},
    {"role": "tool", "tool_call_id": "call_2", "content": "rain"},
    {"role": "user", "content": "And tomorrow?"},
]


@pytest.mark.parametrize("template", [PLAIN, IN_TURNS, UNKNOWN])
async def test_a_tool_loop_goes_round_whatever_the_template_knows(template: str) -> None:
    script = said(f"Let me look.\n{call_text('get_weather', PARIS)}")
    async with serving(dispatcher=dispatcher(script), model=chat_model(template)) as gateway:
        client = openai_of(gateway).chat.completions.with_raw_response
        first = await client.create(model=MODEL, messages=USER, tools=[WEATHER])
        later = await client.create(model=MODEL, messages=HISTORY, tools=[WEATHER])
        shown, later_shown = (text_of(g.prompt) for g in gateway.dispatcher.generations)

    (choice,) = first.parse().choices
    assert choice.finish_reason == "tool_calls" and choice.message.content == "Let me look."
    assert choice.message.tool_calls[0].function.arguments == PARIS
    assert first.headers["x-baton-tool-format"] == "generic" == later.headers["x-baton-tool-format"]
    assert '"name":"get_weather"' in shown and "Weather in Paris?" in shown
    assert later_shown.count("<tool_call>\n") == 2 + shown.count("<tool_call>\n")
    assert "<tool_response>\n12 C\n</tool_response>\n<tool_response>\nrain" in later_shown


async def test_a_conversation_without_tools_is_written_as_ever() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(PLAIN)) as gateway:
        response = await gateway.chat(messages=USER)
        (generation,) = gateway.dispatcher.generations

    assert text_of(generation.prompt) == "<|user|>Weather in Paris?<|assistant|>"
    assert generation.sampling.grammar is None and "x-baton-tool-format" not in response.headers


async def test_a_prompt_is_counted_as_it_is_computed() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(PLAIN)) as gateway:
        body: dict[str, Any] = {"messages": USER, "tools": [WEATHER]}
        counted = await gateway.http.post("/tokenize", json=body)
        await gateway.chat(**body)
        (generation,) = gateway.dispatcher.generations

    assert counted.json()["tokens"] == list(generation.prompt)


SCHEMA_UNKNOWN = {"type": "object", "properties": {"x": {"type": "string", "pattern": "(?=a)b"}}}


async def test_a_schema_of_which_no_grammar_can_be_made_is_left_to_the_model_unless_strict() -> (
    None
):
    function: dict[str, Any] = {"name": "f", "parameters": SCHEMA_UNKNOWN}
    tool = {"type": "function", "function": function}
    strict = {"type": "function", "function": {**function, "strict": True}}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(PLAIN)) as gateway:
        trusted = await gateway.chat(messages=USER, tools=[tool])
        refused = await gateway.chat(messages=USER, tools=[strict])

    assert trusted.status_code == 200 and refused.status_code == 400
    assert refused.json()["error"]["param"] == "tools[0].function.parameters"


async def grammar_of(template: str, **fields: Any) -> Any:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(template)) as gateway:
        await gateway.chat(messages=USER, **fields)
        return gateway.dispatcher.generations[0].sampling.grammar


@pytest.mark.parametrize("is_parallel", [True, False])
async def test_text_is_free_and_a_call_once_begun_fits_its_schema(is_parallel: bool) -> None:
    grammar = await grammar_of(PLAIN, tools=[WEATHER], parallel_tool_calls=is_parallel)
    tokenizer = Tokenizer.from_str(text_tokenizer().to_json())
    checker = GrammarChecker(tokenizer.to_str, [eos_token()])

    def takes_all(text: str) -> bool:
        matcher = checker.start(grammar)
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    call = call_text("get_weather", PARIS)
    assert takes_all("No call at all: <tool> is not one.\n")
    assert takes_all(f"Let me look.\n{call}") and takes_all(f"{call}\nThat was it.")
    assert takes_all(f"{call}\n{call}") == is_parallel
    assert not takes_all(call_text("get_weather", '{"town": "Paris"}'))
    assert not takes_all(call_text("get_whether", PARIS))
    assert not takes_all("<tool_call>\nsomething else")


async def test_a_forced_call_is_offered_in_words_too() -> None:
    calls = json.dumps([{"name": "get_weather", "parameters": json.loads(PARIS)}])
    model = chat_model(PLAIN)
    async with serving(dispatcher=dispatcher(said(calls)), model=model) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[WEATHER], tool_choice="required"
        )
        shown = text_of(gateway.dispatcher.generations[0].prompt)

    assert chat.choices[0].message.tool_calls[0].function.name == "get_weather"
    assert "get_weather" in shown and "<tool_call>" not in shown
