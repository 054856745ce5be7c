"""Under `auto`, a call that has begun fits its schema, in whatever format the model writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.chat_models import PARIS, USER, WEATHER, chat_model, dispatcher, said
from tests.gateway.scripted import ScriptedDispatcher, eos_token, serving, text_tokenizer
from tokenizers import AddedToken, Tokenizer

from baton.core.errors import Overloaded
from baton.core.sampling import Grammar, GrammarKind
from baton.engine.grammar.grammar_check import GrammarChecker
from baton.engine.grammar.grammar_readers import GrammarReaders
from baton.gateway.chat.call_grammars import optional_calls
from baton.gateway.chat.functions import Function
from baton.gateway.chat.tool_definitions import ToolMode, ToolUse
from baton.gateway.chat.tool_detection import MARKERS
from baton.gateway.output import formats
from baton.gateway.output.formats import CALL_BEGIN, CALL_END, CALLS_BEGIN, CALLS_END, SEPARATOR
from baton.gateway.text.tokenizer import TextTokenizer

PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "unit": {"type": "string", "enum": ["C", "F"]},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
GOOD, BAD = '{"city": "Oslo", "days": 3}', '{"city": "Oslo", "days": "soon"}'
LISTED = '{"name": "get_weather", "arguments": %s}'


def qwen3_coder(days: str, more: str = "") -> str:
    return (
        "<tool_call>\n<function=get_weather>\n<parameter=city>\nOs\nlo </b>\n</parameter>\n"
        f"<parameter=days>\n{days}\n</parameter>\n{more}</function>\n</tool_call>"
    )


def glm(days: str) -> str:
    return (
        "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Oslo</arg_value>\n"
        f"<arg_key>days</arg_key><arg_value>{days}</arg_value></tool_call>"
    )


def kimi(arguments: str) -> str:
    call = "<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    return f"<|tool_calls_section_begin|>{call}{arguments}<|tool_call_end|>{formats.KIMI_CALLS_END}"


def deepseek(arguments: str, *, is_fenced: bool = False) -> str:
    named = f"get_weather{SEPARATOR}{arguments}"
    fenced = f"function{SEPARATOR}get_weather\n```json\n{arguments}\n```"
    call = fenced if is_fenced else named
    return f"{CALLS_BEGIN}{CALL_BEGIN}{call}{CALL_END}{CALLS_END}"


PLACED: dict[str, Any] = {
    "type": "object",
    "properties": {
        "place": {
            "type": "object",
            "properties": {"name": {"type": "string"}},
            "required": ["name"],
        }
    },
    "required": ["place"],
}
PLACES = {
    "qwen3_coder": "<tool_call>\n<function=get_weather>\n<parameter=place>\n%s\n</parameter>\n"
    "</function>\n</tool_call>",
    "glm": "<tool_call>get_weather\n<arg_key>place</arg_key>\n<arg_value>%s</arg_value>\n"
    "</tool_call>",
}


@pytest.mark.parametrize("name", PLACES)
def test_a_text_within_json_within_tags_cannot_have_the_tag_that_ends_it(name: str) -> None:
    tokenizer = Tokenizer.from_str(text_tokenizer().to_json())

    def takes(place: str) -> bool:
        return takes_all(name, tokenizer, {}, PLACES[name] % json.dumps({"name": place}), PLACED)

    assert takes("Oslo </b>") and takes('"') and takes("<tool_call>")
    ends = {
        "qwen3_coder": ("</parameter>", "<parameter=", "</function>"),
        "glm": ("</arg_value>", "<arg_key>", "</tool_call>"),
    }
    assert [end for end in ends[name] if takes(f"a{end}b")] == []


UNIT = "<parameter=unit>\n%s\n</parameter>\n"
CASES: dict[str, tuple[Sequence[str], Sequence[str]]] = {
    "hermes": (
        [f"<tool_call>\n{LISTED % GOOD}\n</tool_call>"],
        [f"<tool_call>\n{LISTED % BAD}\n</tool_call>"],
    ),
    "mistral": (
        [f"[TOOL_CALLS] [{LISTED % GOOD}]", f"[TOOL_CALLS][{LISTED % GOOD}, {LISTED % GOOD}]"],
        [f"[TOOL_CALLS] [{LISTED % BAD}]", "[TOOL_CALLS] no"],
    ),
    "phi": (
        [f"<|tool_call|>[{LISTED % GOOD}]<|/tool_call|>"],
        [f"<|tool_call|>[{LISTED % BAD}]<|/tool_call|>"],
    ),
    "kimi": ([kimi(GOOD)], [kimi(BAD), kimi(GOOD).replace("get_weather", "get_whether")]),
    "deepseek": (
        [deepseek(GOOD), deepseek(GOOD, is_fenced=True)],
        [deepseek(BAD), deepseek(BAD, is_fenced=True)],
    ),
    "qwen3_coder": (
        [qwen3_coder("3"), qwen3_coder("3", UNIT % "F")],
        [
            qwen3_coder("soon"),
            qwen3_coder("3").replace("lo </b>", "</function>"),
            qwen3_coder("3", UNIT % "K"),
            qwen3_coder("3", UNIT % "F" * 2),
        ],
    ),
    "glm": ([glm("3")], [glm("soon")]),
}


def takes_all(
    name: str,
    tokenizer: Tokenizer,
    ids: Mapping[str, int],
    text: str,
    parameters: dict[str, Any] = PARAMETERS,
) -> bool:
    """Whether an output of a model that has `ids` as special tokens may be `text`."""
    tools = ToolUse(
        functions=(Function(name="get_weather", parameters=parameters),), mode=ToolMode.AUTO
    )
    calls = optional_calls(name, tools, ids)
    assert calls is not None
    checker = GrammarChecker(tokenizer.to_str, [eos_token()])
    matcher = checker.start(Grammar(GrammarKind.LARK, f"start: calls\n{calls}"))
    tokens = tokenizer.encode(text, add_special_tokens=False).ids
    return matcher.try_consume_tokens(tokens) == len(tokens) and matcher.is_accepting()


def qwen3_coder_bare(days: str) -> str:
    return qwen3_coder(days).removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")


def bare(call: str, begin: str, end: str) -> str:
    return call.removeprefix(begin).removesuffix(end)


BARE: dict[str, tuple[str, str]] = {
    "qwen3_coder": (qwen3_coder_bare("3"), qwen3_coder_bare("soon")),
    "phi": (f"functools[{LISTED % GOOD}]", f"functools[{LISTED % BAD}]"),
    "kimi": (
        bare(kimi(GOOD), formats.KIMI_CALLS, formats.KIMI_CALLS_END),
        bare(kimi(BAD), formats.KIMI_CALLS, formats.KIMI_CALLS_END),
    ),
    "deepseek": (
        bare(deepseek(GOOD), CALLS_BEGIN, CALLS_END),
        bare(deepseek(BAD), CALLS_BEGIN, CALLS_END),
    ),
}
"""Without the mark that calls begin with: parsers read them all the same."""


@pytest.mark.parametrize("name", BARE)
def test_calls_fit_their_schema_without_their_mark(name: str) -> None:
    tokenizer = Tokenizer.from_str(text_tokenizer().to_json())

    good, bad = BARE[name]
    assert takes_all(name, tokenizer, {}, f"So:\n{good}\nDone.")
    assert not takes_all(name, tokenizer, {}, f"So:\n{bad}")
    assert not takes_all(name, tokenizer, {}, f"{CASES[name][0][0]}\n{bad}")


@pytest.mark.parametrize("name", CASES)
def test_text_is_free_and_calls_fit_their_schema(name: str) -> None:
    tokenizer = Tokenizer.from_str(text_tokenizer().to_json())

    good, bad = CASES[name]
    assert takes_all(name, tokenizer, {}, "No call at all: [1] <tool> is none.\n")
    assert [text for text in good if not takes_all(name, tokenizer, {}, f"So:\n{text}")] == []
    assert [text for text in bad if takes_all(name, tokenizer, {}, text)] == []


NAMED = f"{formats.MISTRAL_CALLS}get_weather{formats.MISTRAL_ARGUMENTS}%s"
WITH_ID = NAMED.replace("[ARGS]", "[CALL_ID]abcDEF123[ARGS]")
SPECIAL = {
    **{name: CASES[name] for name in ("hermes", "phi", "kimi", "deepseek", "glm")},
    "mistral": (
        [NAMED % GOOD, NAMED % GOOD * 2, WITH_ID % GOOD],
        [NAMED % BAD, "[TOOL_CALLS]", WITH_ID % BAD],
    ),
}


@pytest.mark.parametrize("name", SPECIAL)
def test_marks_may_be_special_tokens(name: str) -> None:
    tokenizer = Tokenizer.from_str(text_tokenizer().to_json())
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in MARKERS])
    ids = {mark: tokenizer.token_to_id(mark) or 0 for mark in MARKERS}

    good, bad = SPECIAL[name]
    assert takes_all(name, tokenizer, ids, "No call at all.\n")
    assert [text for text in good if not takes_all(name, tokenizer, ids, f"So: {text}")] == []
    assert [text for text in bad if takes_all(name, tokenizer, ids, text)] == []


KIMI = "{{ tools | tojson }}{# <|tool_calls_section_begin|> #}{{ messages[0].content }}"
LLAMA = "{{ tools | tojson }}{# <|python_tag|> #}{{ messages[0].content }}"
CODER = "{{ tools | tojson }}{# <tool_call> <function= <parameter= #}{{ messages[0].content }}"
OPEN = {**PARAMETERS, "additionalProperties": True}


def weather(**changes: Any) -> dict[str, Any]:
    return {**WEATHER, "function": {**WEATHER["function"], **changes}}


@pytest.mark.parametrize("template", [KIMI, LLAMA, CODER])
async def test_calls_are_held_to_their_schemas_unless_the_caller_trusts_the_model(
    template: str,
) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(template)) as gateway:
        answers = [
            await gateway.chat(messages=USER, tools=[weather(strict=strict)])
            for strict in (True, None, False)
        ]
        await gateway.chat(messages=USER, tools=[weather()], ignore_eos=True)
        strict, plain, trusted, endless = (
            g.sampling.grammar for g in gateway.dispatcher.generations
        )

    assert strict is not None and strict == plain and trusted is endless is None
    assert "city" in strict.source
    told = [
        name
        for answer in answers
        for name in ("x-baton-ignored", SCHEMAS)
        if name in answer.headers
    ]
    assert told == []


SCHEMAS = "x-baton-tool-schemas"


async def test_an_operator_may_have_strict_tools_alone_held_to_their_schemas() -> None:
    async with serving(
        dispatcher=dispatcher(said("x")), model=chat_model(KIMI), tool_schemas="strict"
    ) as gateway:
        plain = await gateway.chat(messages=USER, tools=[weather()])
        await gateway.chat(messages=USER, tools=[weather(strict=True)])
        trusted, held = (g.sampling.grammar for g in gateway.dispatcher.generations)

    assert trusted is None and held is not None
    assert plain.headers[SCHEMAS] == "trusted"


async def test_an_answer_says_that_its_calls_could_not_be_held_to_their_schemas() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(CODER)) as gateway:
        plain = await gateway.chat(messages=USER, tools=[weather(parameters=OPEN)])
        strict = await gateway.chat(messages=USER, tools=[weather(parameters=OPEN, strict=True)])
        grammars = [g.sampling.grammar for g in gateway.dispatcher.generations]

    assert grammars == [None, None]
    assert plain.headers[SCHEMAS] == strict.headers[SCHEMAS] == "trusted"
    assert "x-baton-ignored" not in plain.headers
    assert strict.headers["x-baton-ignored"] == "tools[0].function.strict"


@pytest.mark.parametrize(
    ("words", "is_held"),
    [
        ({"properties": {"a": {"type": "string"}}, "required": None}, True),
        ({"properties": {"a": {"type": "string", "enum": ["a", 1]}}}, True),
        ({"properties": {"a": {"type": ["string", "null"], "enum": ["a", None]}}}, False),
        ({"properties": {"a": {"anyOf": [{"type": "string"}, {"type": "null"}]}}}, True),
        ({}, False),
        ({"additionalProperties": {"type": "string"}}, False),
        ({"anyOf": [{"required": ["a"]}]}, False),
    ],
)
def test_tags_are_held_to_what_they_can_be(words: dict[str, Any], is_held: bool) -> None:
    function = Function(name="f", parameters={"type": "object", **words})
    tools = ToolUse(functions=(function,), mode=ToolMode.AUTO)
    assert (optional_calls("qwen3_coder", tools) is not None) == is_held


THINKS = ("[THINK]", "[/THINK]")
HERMES = "{{ tools | tojson }}{# <tool_call> #}{{ messages[0].content }}"


@pytest.mark.parametrize("template", [HERMES, LLAMA])
async def test_a_model_may_write_marks_of_reasoning_that_nobody_here_knows(template: str) -> None:
    tokenizer = Tokenizer.from_str(text_tokenizer().to_json())
    tokenizer.add_special_tokens([AddedToken(mark, special=True) for mark in THINKS])
    model = replace(chat_model(template), tokenizer=TextTokenizer(tokenizer.to_str()))
    async with serving(dispatcher=dispatcher(said("x")), model=model) as gateway:
        await gateway.chat(messages=USER, tools=[weather()])
        (grammar,) = (g.sampling.grammar for g in gateway.dispatcher.generations)

    assert grammar is not None
    checker = GrammarChecker(tokenizer.to_str, [eos_token()])

    def takes(text: str) -> bool:
        matcher, tokens = checker.start(grammar), tokenizer.encode(text, add_special_tokens=False)
        return bool(matcher.try_consume_tokens(tokens.ids) == len(tokens.ids))

    thought = "[THINK]Let me see.[/THINK]"
    assert takes(f"{thought}Hello.") and takes(f"Well. {thought}Hello.")
    if template == HERMES:
        assert takes(f"{thought}So:\n<tool_call>\n{LISTED % PARIS}\n</tool_call>")
        assert not takes(f"{thought}So:\n<tool_call>\n{LISTED % BAD}")


def wide(num: int) -> dict[str, Any]:
    return {"type": "object", "properties": {f"p{i}": {"type": "integer"} for i in range(num)}}


def deep(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    for _ in range(depth):
        schema = {"anyOf": [schema]}
    return {"type": "object", "properties": {"a": schema}, "additionalProperties": False}


GEMMA = "{{ tools | tojson }}{# <start_function_call> #}{{ messages[0].content }}"
ODD = {"type": "object", "properties": {"a": {"type": "string", "pattern": "(?=a)"}}}


@pytest.mark.parametrize(
    ("template", "num_tools", "parameters"),
    [(GEMMA, 40, PARAMETERS), (KIMI, 1, wide(200)), (HERMES, 2, wide(200))],
)
async def test_a_grammar_that_would_be_too_large_is_told_and_never_refused(
    template: str, num_tools: int, parameters: dict[str, Any]
) -> None:
    tools = [
        weather(name=f"tool_{i}", parameters=parameters, strict=True) for i in range(num_tools)
    ]
    model = replace(chat_model(template), context_len=100_000)
    scripted = ScriptedDispatcher(said("x"), max_model_len=100_000)
    async with serving(dispatcher=scripted, model=model) as gateway:
        answer = await gateway.chat(messages=USER, tools=tools)
        grammars = [g.sampling.grammar for g in gateway.dispatcher.generations]

    assert answer.status_code == 200 and grammars == [None]
    assert answer.headers[SCHEMAS] == "trusted"
    assert answer.headers["x-baton-ignored"].startswith("tools[0].function.strict")


async def test_a_strict_schema_that_is_itself_at_fault_is_refused() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(KIMI)) as gateway:
        strict = await gateway.chat(messages=USER, tools=[weather(parameters=ODD, strict=True)])
        plain = await gateway.chat(messages=USER, tools=[weather(parameters=ODD)])

    assert (strict.status_code, plain.status_code) == (400, 200)
    assert plain.headers[SCHEMAS] == "trusted"


async def test_words_of_a_schema_are_no_intersections_of_its_grammar() -> None:
    words = [f"{word} & co" for word in "abcdefghijklmnopqrst"]
    cities = {"city": {"type": "string", "enum": words}}
    parameters = {**PARAMETERS, "properties": cities, "required": ["city"]}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(KIMI)) as gateway:
        answer = await gateway.chat(messages=USER, tools=[weather(parameters=parameters)])
        (grammar,) = (g.sampling.grammar for g in gateway.dispatcher.generations)

    assert grammar is not None and SCHEMAS not in answer.headers
    tokenizer = Tokenizer.from_str(text_tokenizer().to_json())
    for name in ("kimi", "qwen3_coder"):
        call = kimi('{"city": "b & co"}') if name == "kimi" else AMPERSANDS
        assert takes_all(name, tokenizer, {}, call, parameters)
        assert not takes_all(name, tokenizer, {}, call.replace("b & co", "z & co"), parameters)


AMPERSANDS = (
    "<tool_call>\n<function=get_weather>\n<parameter=city>\nb & co\n</parameter>\n"
    "</function>\n</tool_call>"
)


@pytest.mark.parametrize("template", [KIMI, LLAMA, CODER, GEMMA])
async def test_schemas_of_many_levels_are_an_answer_or_a_refusal(template: str) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(template)) as gateway:
        answers = [
            await gateway.chat(messages=USER, tools=[weather(parameters=deep(400), strict=strict)])
            for strict in (True, None)
        ]

    assert {answer.status_code for answer in answers} <= {200, 400}


@pytest.mark.parametrize(("strict", "status"), [(None, 200), (True, 429)])
async def test_while_grammars_of_others_are_read_a_model_is_trusted(
    strict: bool | None, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def busy(self: GrammarReaders, grammar: object) -> None:
        raise Overloaded("too many grammars are being read; try again later")

    model = chat_model(KIMI)
    async with serving(dispatcher=dispatcher(said("x")), model=model) as gateway:
        with monkeypatch.context() as patched:
            patched.setattr(GrammarReaders, "read", busy)
            answer = await gateway.chat(messages=USER, tools=[weather(strict=strict)])
        later = await gateway.chat(messages=USER, tools=[weather(strict=strict)])

    assert answer.status_code == status
    assert status != 200 or answer.headers[SCHEMAS] == "trusted"
    assert later.status_code == 200 and SCHEMAS not in later.headers
