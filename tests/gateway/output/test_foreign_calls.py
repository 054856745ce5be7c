"""Calls as Qwen3-Coder, GLM, DeepSeek-V3.2, Mistral, Kimi, Phi, Llama 4 and Gemma write them."""

from __future__ import annotations

import json

import pytest
from tests.gateway.output.test_tools_parsers import FORMATS, call, parsed

from baton.gateway.output.output_parser import OutputParser
from baton.gateway.output.pieces import CallArguments, CallStart, Content, Piece
from baton.gateway.output.text_reader import MAX_HELD

CITY = 'São "Tomé"\n  {island} '
WANTED = {"city": CITY, "days": 3, "where": {"lat": 0.5, "on": [True, None]}, "unit": "C"}
WHERE = '{"lat": 0.5, "on": [true, null]}'
QUOTED = json.dumps(CITY, ensure_ascii=False)
ARGUMENTS = f'{{"city": {QUOTED}, "days": 3, "where": {WHERE}, "unit": "C"}}'
D = "\uff5cDSML\uff5c"


def dsml(key: str, value: str, is_text: str) -> str:
    return f'<{D}parameter name="{key}" string="{is_text}">{value}</{D}parameter>\n'


QWEN3_CODER = f"""<tool_call>
<function=get_weather>
<parameter=city>
{CITY}
</parameter>
<parameter=days>
3
</parameter>
<parameter=where>
{WHERE}
</parameter>
<parameter=unit>
C
</parameter>
</function>
</tool_call>"""
GLM = (
    f"<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>{CITY}</arg_value>\n"
    f"<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>where</arg_key>"
    f"<arg_value>{WHERE}</arg_value>\n<arg_key>unit</arg_key>\n<arg_value>C</arg_value>\n</tool_call>"
)
V32 = (
    f'<{D}invoke name="get_weather">\n{dsml("city", CITY, "true")}{dsml("days", "3", "false")}'
    f"{dsml('where', WHERE, 'false')}{dsml('unit', 'C', 'true')}</{D}invoke>"
)
LISTED = f'{{"name": "get_weather", "arguments": {ARGUMENTS}, "id": "123456789"}}'
KIMI = (
    "<|tool_call_begin|>functions.get_weather:%d<|tool_call_argument_begin|>"
    f"{ARGUMENTS}<|tool_call_end|>"
)
PYTHON = f"get_weather(city={QUOTED}, days=3, where={WANTED['where']}, unit='C')"
GEMMA = (
    f"call:get_weather{{city:QUOTE{CITY}QUOTE,days:3,"
    "where:{lat:0.5,on:[true,null]},unit:QUOTECQUOTE}"
)

TWICE = {
    "qwen3_coder": f"{QWEN3_CODER}\n{QWEN3_CODER}",
    "qwen3_coder without its mark": f"{QWEN3_CODER[12:]}\n{QWEN3_CODER[12:]}",
    "glm": f"{GLM}\n{GLM}",
    "deepseek_v32": f"<{D}function_calls>\n{V32}\n{V32}\n</{D}function_calls>",
    "deepseek_v32, of V4": f"<{D}tool_calls>\n{V32}\n{V32}\n</{D}tool_calls>",
    "mistral": f"[TOOL_CALLS] [{LISTED}, {LISTED}]",
    "mistral, of today": f"[TOOL_CALLS]get_weather[ARGS]{ARGUMENTS}" * 2,
    "mistral, with ids": f"[TOOL_CALLS]get_weather[CALL_ID]abcdefghi[ARGS]{ARGUMENTS}" * 2,
    "kimi": f"<|tool_calls_section_begin|>{KIMI % 0}{KIMI % 1}<|tool_calls_section_end|>",
    "phi": f"<|tool_call|>[{LISTED}, {LISTED}]<|/tool_call|>",
    "phi, in words": f"functools[{LISTED}, {LISTED}]",
    "llama4": f"[{PYTHON}, {PYTHON}]",
    "llama4, marked": f"<|python_start|>[{PYTHON}, {PYTHON}]<|python_end|>",
    "gemma": f"<start_function_call>{GEMMA}<end_function_call>".replace("QUOTE", "<escape>") * 2,
    "gemma, of 4": f"<|tool_call>{GEMMA}<tool_call|>".replace("QUOTE", '<|"|>') * 2,
}
SPEAKS_BEFORE = {name for name in TWICE if not name.startswith("llama4")}
"""Llama 4 either answers or calls."""


def format_of(case: str) -> str:
    return case.partition(",")[0].partition(" ")[0]


@pytest.mark.parametrize("case", TWICE)
def test_two_calls_have_the_arguments_that_their_schema_asks_for(case: str) -> None:
    before = "Let me see. " if case in SPEAKS_BEFORE else ""

    pieces = parsed(format_of(case), list(before + TWICE[case]))

    assert pieces[: bool(before)] == ([Content("Let me see.")] if before else [])
    calls = pieces[bool(before) :]
    assert [piece.name for piece in calls if isinstance(piece, CallStart)] == ["get_weather"] * 2
    texts = [piece.text for piece in calls if isinstance(piece, CallArguments)]
    assert [json.loads(text) for text in texts] == [WANTED] * 2 and len(calls) == 4


@pytest.mark.parametrize(
    "case",
    [
        pytest.param(case, marks=() if case == format_of(case) else pytest.mark.wide)
        for case in TWICE
    ],
)
def test_what_the_limit_of_the_output_cuts_of_them_never_shows_as_text(case: str) -> None:
    text = TWICE[case]
    sure = text.index("get_weather") + len("get_weather(")

    for end in range(2, len(text), 5):
        parser = OutputParser(FORMATS[format_of(case)])
        pieces: list[Piece] = [*parser.feed(text[:end]), *parser.finish(is_cut=True)]
        shown = "".join(piece.text for piece in pieces if isinstance(piece, Content))
        is_unsure = case.startswith("llama4") and end < sure
        assert len(shown) < 2 or is_unsure, text[:end]  # one character is no sign of a call


@pytest.mark.parametrize(
    ("name", "written", "arguments"),
    [
        ("qwen3_coder", "<function=f></function>", "{}"),
        ("qwen3_coder", "<function=f><parameter=a>True</parameter></function>", '{"a": true}'),
        ("qwen3_coder", "<function=f><parameter=a>1<parameter=b>2</function>", '{"a": 1, "b": 2}'),
        ("qwen3_coder", "<function=f><parameter=a>1</parameter>\n", '{"a": 1}'),
        ("glm", "f\n", "{}"),
        (
            "glm",
            "f<arg_key>a</arg_key><arg_value>1<arg_key>b</arg_key><arg_value>2",
            '{"a": 1, "b": 2}',
        ),
        ("glm", "f<arg_key>a</arg_key><arg_value>NaN</arg_value>", '{"a": "NaN"}'),
        ("glm", "get_weather<arg_key>city</arg_key><arg_value>7</arg_value>", '{"city": "7"}'),
        ("glm", "get_weather<arg_key>days</arg_key><arg_value>null</arg_value>", '{"days": null}'),
        ("glm", "get_weather<arg_key>unit</arg_key><arg_value>0</arg_value>", '{"unit": "0"}'),
    ],
)
def test_a_value_without_quotes_becomes_what_its_schema_says(
    name: str, written: str, arguments: str
) -> None:
    function = "get_weather" if "get_weather" in written else "f"

    assert parsed(name, [f"<tool_call>{written}</tool_call>"]) == call(0, function, arguments)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("qwen3_coder", "<tool_call>\nnothing\n</tool_call>"),
        ("glm", "<tool_call>one <b>two</b></tool_call>"),
        ("deepseek_v32", f"<{D}invoke name=f>"),
        ("mistral", "[TOOL_CALLS] are how Mistral calls."),
        ("kimi", "<|tool_call_begin|>functions.f:0 {}"),
        ("phi", "functools[0] is no call"),
        ("llama4", "[1] A source, [2] another (of f)."),
        ("llama4", "[f(**x)]"),
        ("llama4", r"[f(a='\ud800')]"),
        ("llama4", "[unknown(a=1)]"),
        ("qwen3_coder", "`<function=unknown>` in the docs"),
        ("gemma", "<start_function_call>f{a:1}<end_function_call>"),
    ],
)
def test_what_is_no_call_of_theirs_is_content(name: str, text: str) -> None:
    assert parsed(name, list(text)) == [Content(text)]


def test_llama4_may_write_json() -> None:
    assert parsed("llama4", ['{"name": "f", "parameters": {"a": 1}}']) == call(0, "f", '{"a": 1}')
    assert parsed("llama4", ["[f(a=[true, null])]"]) == call(0, "f", '{"a": [true, null]}')
    assert parsed("llama4", ["[get_weather(days='3')]"]) == call(0, "get_weather", '{"days": 3}')


def test_a_word_at_the_limit_of_the_output_is_no_beginning_of_a_call() -> None:
    parser = OutputParser(FORMATS["phi"])

    pieces = [*parser.feed("I like tofu"), *parser.finish(is_cut=True)]

    assert "".join(piece.text for piece in pieces if isinstance(piece, Content)) == "I like tofu"


def test_half_of_a_pair_of_surrogates_in_a_call_can_be_sent() -> None:
    text = r'{"name": "f\ud83d", "parameters": "{\"a\": \"\ud83d\", \"b\": \"\ud83d\ude00\"}"}'

    pieces = parsed("hermes", list(f"<tool_call>{text}</tool_call>"))

    assert pieces == call(0, "f\ufffd", '{"a": "\ufffd", "b": "\U0001f600"}')


@pytest.mark.parametrize("between", ["", "\n", "; "])
def test_llama4_calls_behind_its_marks(between: str) -> None:
    one = '{"name": "f", "parameters": {"a": 1}}'
    text = f"<|python_start|>Let me see.<|python_end|>{one}{between}{one} Done."

    assert parsed("llama4", list(text)) == [
        Content("Let me see."),
        *call(0, "f", '{"a": 1}'),
        *call(1, "f", '{"a": 1}'),
        Content("Done."),
    ]


@pytest.mark.parametrize(
    ("name", "begin", "shown"),
    [
        ("llama4", "", ""),
        ("llama4", "<|python_start|>", "<|python_start|>"),
        ("llama3", '<|python_tag|>{"name": "f", "parameters": {}};', ";"),
    ],
)
def test_white_space_without_end_is_no_call(name: str, begin: str, shown: str) -> None:
    space = " " * MAX_HELD

    pieces = parsed(name, [f"{begin}{space}hello"])

    assert pieces[-1] == Content(f"{shown}{space}hello")


@pytest.mark.parametrize(
    ("written", "arguments", "rest"),
    [
        ("a:[1,2 ,],b:3}", {"a": [1, 2, None]}, "],b:3}"),
        ("a:,b:QUOTExQUOTE}", {"a": None}, ",b:QUOTExQUOTE}"),
        ("a:{b:1;c<}}", {"a": {"b": "1;c"}}, "<}}"),
        ("a:[[{b:QUOTEx", {"a": [[{"b": "x"}]]}, ""),
        ('a:[{b:"x', {"a": [{"b": "x"}]}, ""),
        (f"a:{'[' * 20}1", {"a": [[[[[[[[[[[[[[[[[None]]]]]]]]]]]]]]]]]}, "[[[1"),
        (f"a:[{'123456789,' * 7_000}1]}}", {"a": [123456789] * 7_000 + [1]}, ""),
        (f'a:"{"x" * MAX_HELD}",b:1}}', {"a": "x" * MAX_HELD, "b": 1}, ""),
    ],
)
def test_the_arguments_of_gemma_are_json_wherever_they_break_off(
    written: str, arguments: dict[str, object], rest: str
) -> None:
    text, quote = f"<|tool_call>call:f{{{written}", '<|"|>'

    start, found, *shown = parsed("gemma", [text.replace("QUOTE", quote)])

    assert start == CallStart(0, "0", "f")
    assert isinstance(found, CallArguments) and json.loads(found.text) == arguments
    assert shown == ([Content(rest.replace("QUOTE", quote))] if rest else [])
