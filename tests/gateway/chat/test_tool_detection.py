"""Which parsers a model gets: read off its chat template, or set."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.gateway.chat_models import HERMES, PLAIN, WEATHER
from tests.gateway.scripted import Script, ScriptedDispatcher, make_model, serving, tokenizer_json
from tokenizers import AddedToken, Tokenizer

from baton.gateway.chat.tool_detection import call_format, format_name
from baton.gateway.output import formats
from baton.gateway.output.reasoning import ReasoningStart, reasoning_format, reasoning_start
from baton.gateway.text.chat_template import ChatTemplate
from baton.gateway.text.tokenizer import TextTokenizer


@pytest.mark.parametrize(
    ("template", "parser"),
    [
        (HERMES, "hermes"),
        ('<tool_call>\\n{"name": <function-name>}', "hermes"),
        ("<tool_call><function=example><parameter=x>", "qwen3_coder"),
        ("<tool_call><function=example>{}", "generic"),
        ("<tool_call>{name}<arg_key>{key}</arg_key>", "glm"),
        ("{{ '[TOOL_CALLS]' }}", "mistral"),
        ("<|tool_calls_section_begin|>", "kimi"),
        ("{{ '<|tool|>' + message['tools'] }}", "phi"),
        ("{{ '<|python_start|>' }} ipython", "llama4"),
        ("Use exact format: [func_name1(x=1)] ipython", "llama4"),
        ("{{ '<start_function_call>call:' }}", "gemma"),
        ("<\uff5cDSML\uff5cinvoke", "deepseek_v32"),
        ("{{ '<|python_tag|>' + call }}", "llama3"),
        ('ipython: \'{"name": "\' + name + \'", "parameters": \'', "llama3"),
        (f"{{{{ '{formats.CALLS_BEGIN}' }}}}", "deepseek"),
        (PLAIN, "generic"),
    ],
)
def test_the_template_shows_how_calls_are_written(template: str, parser: str) -> None:
    assert format_name("auto", template) == parser


def test_the_setting_comes_before_the_template() -> None:
    assert call_format(format_name("deepseek", HERMES), ()) is formats.deepseek
    assert call_format(format_name("none", HERMES), ()) is None
    assert call_format(format_name("auto", HERMES), ()) is formats.hermes


@pytest.mark.parametrize(
    ("parser", "template", "marked"),
    [
        ("auto", "{{ '<think>' }}", "think"),
        ("auto", "{{ message.reasoning_content }}", "think"),
        ("auto", "<|channel|>analysis<|message|>{{ message.thinking }}", "harmony"),
        ("auto", PLAIN, "none"),
        ("think", PLAIN, "think"),
        ("none", "{{ '<think>' }}", "none"),
    ],
)
def test_the_template_shows_how_the_model_marks_its_reasoning(
    parser: str, template: str, marked: str
) -> None:
    assert reasoning_format(parser, ChatTemplate(template, {})) == marked


@pytest.mark.parametrize(
    ("marked", "prompt", "start"),
    [
        ("think", "<|assistant|><think>\n", ReasoningStart.OPEN),
        ("think", "<|assistant|><think>\n\n</think>\n\n", ReasoningStart.NOWHERE),
        ("think", "<|user|><think><|assistant|>", ReasoningStart.FIRST),
        ("none", "<|assistant|><think>\n", ReasoningStart.NOWHERE),
        ("harmony", "<|end|><|start|>assistant", ReasoningStart.CHANNEL),
        ("harmony", "<|channel|>final<|message|>The sky is", ReasoningStart.NOWHERE),
    ],
)
def test_the_end_of_the_prompt_shows_where_reasoning_begins(
    marked: str, prompt: str, start: ReasoningStart
) -> None:
    assert reasoning_start(marked, prompt) is start


LLAMA = "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}{# <|python_tag|> #}"


@pytest.mark.parametrize("tools", [[], [WEATHER]])
async def test_a_special_token_that_marks_calls_shows_only_to_the_parser(tools: list[Any]) -> None:
    tokenizer = Tokenizer.from_str(tokenizer_json())
    tokenizer.add_special_tokens([AddedToken(formats.LLAMA3_TAG, special=True)])
    text = formats.LLAMA3_TAG + '{"name": "get_weather", "parameters": {}}'
    script = Script(tokens=tokenizer.encode(text, add_special_tokens=False).ids)
    model = replace(make_model(template=LLAMA), tokenizer=TextTokenizer(tokenizer.to_str()))
    dispatcher = ScriptedDispatcher(script, max_model_len=4096)
    async with serving(dispatcher=dispatcher, model=model) as gateway:
        response = await gateway.chat(tools=tools)

    message = response.json()["choices"][0]["message"]
    if tools:
        assert message["tool_calls"][0]["function"]["arguments"] == "{}"
    else:
        assert message["content"] == text.removeprefix(formats.LLAMA3_TAG)
