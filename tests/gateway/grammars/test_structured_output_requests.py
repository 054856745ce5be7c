"""What an output must look like: as the caller writes it, and as the grammar it becomes."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.chat_models import HERMES, PLAIN, THINKING, chat_model, said
from tests.gateway.scripted import (
    ScriptedDispatcher,
    Serving,
    eos_token,
    error_of,
    serving,
    text_tokenizer,
    tokenizer_json,
)
from tokenizers import AddedToken, Tokenizer

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.grammar.grammar_check import GrammarChecker
from baton.gateway.chat.call_grammars import calls_grammar
from baton.gateway.chat.functions import Function
from baton.gateway.chat.tool_definitions import use_of
from baton.gateway.grammars.answer_grammar import answer_grammar
from baton.gateway.grammars.structured_output import (
    OutputRule,
    StructuredOutputs,
    rule_of_kinds,
)
from baton.gateway.output import harmony
from baton.gateway.output.reasoning import ReasoningStart
from baton.gateway.text.tokenizer import TextTokenizer

CHECKER = GrammarChecker(tokenizer_json, [eos_token()])
INTEGER = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}
INTEGER["additionalProperties"] = False  # type: ignore[assignment]


SQL = """
root ::= select_statement
select_statement ::= "SELECT " column " from " table " where " condition
column ::= "col_1" | "col_2"
table ::= "table_1" | "table_2"
condition ::= column " = " number
number ::= "1 " | "2 "
"""
"""vLLM's example of `guided_grammar`."""


def takes(grammar: Grammar, text: str) -> bool:
    """Whether `text` is a sentence of the grammar."""
    matcher = CHECKER.start(grammar)
    tokens = list(text_tokenizer().encode(text, add_special_tokens=False))
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def rule(**wanted: Any) -> OutputRule:
    return rule_of_kinds(StructuredOutputs(**wanted), field="f")


@pytest.mark.parametrize(
    ("wanted", "good", "bad"),
    [
        ({"json": INTEGER}, '{"a": 1}', '{"a": "x"}'),
        ({"json": json.dumps(INTEGER)}, '{"a": 1}', "{}"),
        ({"json_object": True}, '{"x": [null, 1.5]}', "[1]"),
        ({"regex": "[a-c]{2}/x"}, "ab/x", "ad/x"),
        ({"choice": ["yes", "no (a|b) \\d + $1.5\n"]}, "no (a|b) \\d + $1.5\n", "no a"),
        ({"grammar": 'start: "a" | "b" start'}, "bba", "ab"),
        ({"grammar": SQL}, "SELECT col_1 from table_1 where col_2 = 1 ", "SELECT col_3"),
    ],
)
def test_every_kind_becomes_a_grammar(wanted: dict[str, Any], good: str, bad: str) -> None:
    grammar = rule(**wanted).grammar

    assert takes(grammar, good)
    assert not takes(grammar, bad)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.text(st.characters(codec="utf-8"), min_size=1, max_size=6), min_size=1))
def test_choices_are_taken_literally(choices: list[str]) -> None:
    grammar = rule(choice=choices).grammar

    assert all(takes(grammar, choice) for choice in choices)
    assert takes(grammar, choices[0] + "?") == (choices[0] + "?" in choices)


def test_blank_lines_are_looked_through_once() -> None:
    """Once for each of them would take an hour."""
    blank = "\n" * 1_000_000

    assert rule(grammar=blank).grammar.source == blank
    with pytest.raises(InvalidRequest, match="1000013 characters of GBNF"):
        rule(grammar=f'{blank}\t root ::= ""')


@pytest.mark.parametrize(
    "wanted",
    [
        *({}, {"regex": "a", "json_object": True}, {"choice": []}, {"choice": [""]}),
        *({"json": "{"}, {"grammar": "root ::= (" + "(" * 5000}, {"grammar": "root ::= x"}),
        {"grammar": 'root ::= "' + "x" * 9000},
    ],
)
def test_exactly_one_kind_is_needed(wanted: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest) as caught:
        rule(**wanted)

    assert (caught.value.field or "").startswith("f")


THOUGHT = "Hm {</thin\n"


@pytest.mark.parametrize(
    ("wanted", "answer"),
    [({"json": INTEGER}, '{"a": 1}'), ({"regex": "a/b|\\/c\n"}, "a/b"), ({"choice": ["/"]}, "/")],
)
def test_a_grammar_can_follow_the_reasoning(wanted: dict[str, Any], answer: str) -> None:
    given_rule = rule(**wanted)
    opened = answer_grammar(given_rule, ReasoningStart.OPEN)
    first = answer_grammar(given_rule, ReasoningStart.FIRST)

    assert takes(opened, f"{THOUGHT}</think>\n\n{answer}")
    assert not takes(opened, answer)
    assert not takes(opened, f"{THOUGHT}</think>\n\n{answer}?")
    assert takes(first, f"<think>{THOUGHT}</think>{answer}")
    assert takes(first, answer)
    assert not takes(first, f"{THOUGHT}</think>{answer}")
    assert answer_grammar(given_rule, ReasoningStart.NOWHERE) == given_rule.grammar


def test_a_layout_without_blanks_holds_behind_reasoning_too() -> None:
    grammar = answer_grammar(rule(json=INTEGER), ReasoningStart.OPEN)

    assert not takes(grammar, 'Hm.</think>{"a":\n  1}')


def test_a_whole_grammar_cannot_follow_reasoning_that_has_begun() -> None:
    with pytest.raises(InvalidRequest, match="chat_template_kwargs"):
        answer_grammar(rule(grammar='start: "a"'), ReasoningStart.OPEN)


def test_a_whole_grammar_leaves_no_room_for_reasoning_that_could_begin() -> None:
    written = rule(grammar='start: "a"')

    assert answer_grammar(written, ReasoningStart.FIRST) == written.grammar


def test_required_calls_fit_the_schemas_of_their_tools() -> None:
    node = {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}
    node["additionalProperties"] = False  # type: ignore[assignment]
    functions = [
        Function(name="f", parameters={"$ref": "#/$defs/Node", "$defs": {"Node": node}}),
        Function(name="g"),
    ]
    any_number = use_of(functions, "required").rule()
    only_one = use_of(functions, "required", is_parallel=False).rule()

    assert any_number is not None and only_one is not None
    f = '{"name": "f", "parameters": {"next": {"next": {}}}}'
    g = '{"name": "g", "parameters": {}}'
    assert takes(any_number.grammar, f"[{f}, {g}]")
    assert takes(only_one.grammar, f"[{f}]")
    assert not takes(only_one.grammar, f"[{f}, {g}]")
    assert not takes(any_number.grammar, "[]")
    assert not takes(any_number.grammar, '[{"name": "f", "parameters": {"last": {}}}]')
    assert not takes(any_number.grammar, '[{"name": "h", "parameters": {}}]')


@pytest.mark.parametrize(
    ("name", "call"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {"a": 1}}\n</tool_call>'),
        ("llama3", '{"name": "f", "parameters": {"a": 1}}'),
    ],
)
def test_calls_may_stand_in_place_of_the_answer(name: str, call: str) -> None:
    tools = use_of([Function(name="f", parameters=INTEGER), Function(name="g")], "auto")
    one = use_of(tools.functions, "auto", is_parallel=False)
    separator = {"hermes": "\n", "llama3": "; "}[name]
    schema = rule(json={"type": "integer"})

    several = answer_grammar(schema, ReasoningStart.FIRST, calls_grammar(name, tools))
    single = answer_grammar(schema, ReasoningStart.NOWHERE, calls_grammar(name, one))

    for text in ("7", call, f"<think>Hm.</think>{call}", f"{call}{separator}{call}"):
        assert takes(several, text)
    assert takes(single, call) and takes(single, "7")
    for text in ("x", call.replace("1", '"x"'), f"7{call}"):
        assert not takes(several, text)
    assert not takes(single, f"{call}{separator}{call}")


def dispatcher(text: str = "x") -> ScriptedDispatcher:
    return ScriptedDispatcher(said(text), max_model_len=4096)


async def grammar_of(gateway: Serving, **body: Any) -> Grammar | None:
    response = await gateway.chat(**body)
    assert response.status_code == 200, response.text
    scripted = gateway.dispatcher
    return scripted.generations[-1].sampling.grammar


async def test_the_grammar_goes_with_the_request() -> None:
    schema = {"type": "json_schema", "json_schema": {"name": "x", "schema": INTEGER}}
    async with serving(dispatcher=dispatcher(), model=chat_model(PLAIN)) as gateway:
        by_schema = await grammar_of(gateway, response_format=schema)
        any_object = await grammar_of(gateway, response_format={"type": "json_object"})
        nothing = await grammar_of(gateway, response_format={"type": "text"})
        regex = await grammar_of(gateway, structured_outputs={"regex": "a+"})
        await gateway.complete(prompt="x", structured_outputs={"choice": ["a", "b"]})

    assert by_schema is not None and json.loads(by_schema.source) == INTEGER
    assert any_object == Grammar(GrammarKind.JSON_SCHEMA, '{"type":"object"}')
    assert nothing is None
    assert regex == Grammar(GrammarKind.REGEX, "a+")
    completion = gateway.dispatcher.generations[-1].sampling.grammar
    assert completion == Grammar(GrammarKind.REGEX, "a|b")


async def test_reasoning_comes_before_what_is_bound() -> None:
    scripted = dispatcher('Hm.</think>{"a": 1}')
    async with serving(dispatcher=scripted, model=chat_model(THINKING)) as gateway:
        response = await gateway.chat(
            response_format={"type": "json_object"}, chat_template_kwargs={"thinks": True}
        )

    grammar = scripted.generations[0].sampling.grammar
    assert grammar is not None and takes(grammar, 'Hm.</think>{"a": 1}')
    message = response.json()["choices"][0]["message"]
    assert (message["reasoning"], message["content"]) == ("Hm.", '{"a": 1}')


SCHEMA_PATH = "response_format.json_schema.schema"
BAD_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "nothing"}}}
WRONG: dict[str, dict[str, Any]] = {
    SCHEMA_PATH: {"response_format": BAD_SCHEMA},
    "response_format.type": {"response_format": {"type": "xml"}},
    "structured_outputs": {"structured_outputs": {}},
    "structured_outputs.regex": {"structured_outputs": {"regex": "("}},
    "structured_outputs.grammar": {"structured_outputs": {"grammar": "begin: x"}},
    "structured_outputs.json": {"structured_outputs": {"json": "{"}},
    "structured_outputs.choice": {"structured_outputs": {"choice": []}},
    "structured_outputs.yaml": {"structured_outputs": {"yaml": "x"}},
    "guided_json": {"guided_json": "{"},
    "ignore_eos": {"response_format": {"type": "json_object"}, "ignore_eos": True},
}


@pytest.mark.parametrize("field", WRONG)
async def test_what_is_wrong_is_named(field: str) -> None:
    async with serving(dispatcher=dispatcher(), model=chat_model(HERMES)) as gateway:
        chat = await gateway.chat(**WRONG[field])
        completion = await gateway.complete(prompt="x", **WRONG[field])

    assert [chat.status_code, completion.status_code] == [400, 400]
    assert error_of(chat)["param"] == error_of(completion)["param"] == field
    assert field in error_of(chat)["message"]  # all that many clients show
    assert not gateway.dispatcher.generations


async def test_both_ways_to_ask_exclude_each_other() -> None:
    async with serving(dispatcher=dispatcher(), model=chat_model()) as gateway:
        response = await gateway.chat(
            response_format={"type": "json_object"}, structured_outputs={"regex": "a"}
        )

    assert error_of(response)["param"] == "structured_outputs"


async def test_an_output_that_cannot_end_cannot_be_bound() -> None:
    model = chat_model(has_eos=False)
    async with serving(dispatcher=dispatcher(), model=model) as gateway:
        response = await gateway.chat(response_format={"type": "json_object"})

    error = error_of(response)
    assert error["param"] == "response_format" and "end-of-sequence" in error["message"]


@pytest.mark.parametrize("depth", [100, 300, 2000])
async def test_deep_schemas_are_taken_or_refused(depth: int) -> None:
    schema = '{"items":' * depth + "{}" + "}" * depth
    tool = f'{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}'
    body = f'{{"messages":[{{"role":"user","content":"x"}}],"tools":[{tool}],"tool_choice":'
    async with serving(dispatcher=dispatcher(), model=chat_model()) as gateway:
        for choice in ('"required"', '{"type":"function","name":"f"}'):
            response = await gateway.http.post(
                "/v1/chat/completions", content=f"{body}{choice}}}".encode()
            )

            assert response.status_code in (200, 400)


ANALYSIS = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"


@pytest.mark.parametrize("are_special", [True, False])
def test_an_answer_on_a_channel_has_its_header(are_special: bool) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json())
    if are_special:
        tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in harmony.MARKERS])
    special = TextTokenizer(tokenizer.to_str()).special_tokens(harmony.MARKERS)
    checker = GrammarChecker(tokenizer.to_str, [eos_token()])
    tools = use_of([Function(name="g"), Function(name="f", parameters=INTEGER)], "auto")
    grammar = answer_grammar(
        rule(regex="a+"),
        ReasoningStart.CHANNEL,
        calls_grammar("harmony", tools, special),
        special_by_mark=special,
    )

    def takes_all(text: str) -> bool:
        matcher = checker.start(grammar)
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()

    call = "<|channel|>commentary to=functions.f <|constrain|>json<|message|>"
    for begin in ("", ANALYSIS):
        assert takes_all(f"{begin}{FINAL}aa")
        assert takes_all(f'{begin}{call}{{"a": 1}}')
        assert not takes_all(f'{begin}{call}{{"a": "x"}}')
        assert not takes_all(f"{begin}aa")


def test_marks_that_are_special_tokens_are_named_as_such() -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json())
    marks = ["<think>", "</think>", "<tool_call>", "</tool_call>"]
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in marks])
    special = TextTokenizer(tokenizer.to_str()).special_tokens(marks)
    checker = GrammarChecker(tokenizer.to_str, [eos_token()])
    tools = use_of([Function(name="f")], "auto")
    call = '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'

    grammar = answer_grammar(
        rule(regex="a+"),
        ReasoningStart.FIRST,
        calls_grammar("hermes", tools, special),
        special_by_mark=special,
    )

    for text in ("aa", f"<think>Hm.</think>\n{call}", "<think>Hm.</think>aa", call):
        matcher = checker.start(grammar)
        tokens = tokenizer.encode(text, add_special_tokens=False).ids
        assert matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()
