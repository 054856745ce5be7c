"""A tool loop on models whose templates want more than OpenAI's messages have."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.chat_models import (
    PARIS,
    USER,
    WEATHER,
    chat_model,
    dispatcher,
    openai_of,
    said,
)
from tests.gateway.scripted import MODEL, serving, text_of

CALLS = (
    "{% for c in m.tool_calls or [] %}[{{ c.id }} {{ c.function.name }} "
    "{{ c.function.arguments | tojson }}]{% endfor %}"
)
MESSAGES = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}WRITTEN{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)
MISTRAL = "{{ tools | tojson }}{# [TOOL_CALLS] #}" + MESSAGES.replace(
    "WRITTEN",
    CALLS + "{% for id in [m.tool_call_id] + (m.tool_calls or []) | map(attribute='id') | list %}"
    "{% if id is defined and id | length != 9 %}{{ raise_exception('nine!') }}{% endif %}"
    "{% endfor %}<{{ m.tool_call_id }}>",
)
KIMI = "{{ tools | tojson }}{# <|tool_calls_section_begin|> #}" + MESSAGES.replace(
    "WRITTEN", CALLS + "{% if m.role == 'tool' %} of {{ m.name }} {{ m.tool_call_id }}{% endif %}"
)
GEMMA = "{{ tools | tojson }}{# <start_function_call> #}" + MESSAGES.replace(
    "WRITTEN", CALLS + "{% if m.role == 'tool' %} of {{ m.name }}{% endif %}"
)
GLM = "{{ tools | tojson }}{# <tool_call><arg_key> #}" + MESSAGES.replace("WRITTEN", CALLS)
LLAMA4 = GLM.replace("<tool_call><arg_key>", "<|python_start|>")
PHI = (
    "{% for message in messages %}{% if message['role'] == 'system' and 'tools' in message and "
    "message['tools'] is not none %}{{ '<system>' + message['content'] + '<|tool|>' + "
    "message['tools'] + '<|/tool|>' }}{% else %}"
    "{{ '<' + message['role'] + '>' + message['content'] }}{% endif %}{% endfor %}"
)


def turn(call_id: str) -> list[dict[str, Any]]:
    function = {"name": "get_weather", "arguments": PARIS}
    call = {"id": call_id, "type": "function", "function": function}
    return [
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": call_id, "content": "12 C"},
    ]


HISTORY = [*USER, *turn("call_Aa0"), *turn("call_Aa0"), *turn("abcdefgh9")]
"""One id is there twice: some clients count anew in each turn."""


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (MISTRAL, [f"[abcdefgh9 get_weather {PARIS}]", "12 C<abcdefgh9>"]),
        (
            KIMI,
            [f"<assistant>[functions.get_weather:{n} get_weather {PARIS}]" for n in range(3)]
            + [f"12 C of get_weather functions.get_weather:{n}<" for n in range(3)],
        ),
        (GEMMA, [f"<assistant>[call_Aa0 get_weather {PARIS}]", "12 C of get_weather"]),
        (GLM, [f"<assistant>[call_Aa0 get_weather {PARIS}]"]),
        (LLAMA4, [f"<assistant>[call_Aa0 get_weather {PARIS}]"]),
        (PHI, ['<|tool|>[{"name":"get_weather"', '<|tool_call|>[{"name":"get_weather"']),
    ],
)
async def test_the_template_takes_what_was_called_before(template: str, written: list[str]) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(template)) as gateway:
        response = await gateway.chat(messages=HISTORY, tools=[WEATHER])
        (generation,) = gateway.dispatcher.generations

    assert response.status_code == 200, response.text
    assert "x-baton-tool-format" not in response.headers
    prompt = text_of(generation.prompt)
    assert [text for text in written if text not in prompt] == [], prompt


CODER = "{{ tools | tojson }}{# <tool_call><function=f><parameter=x> #}" + MESSAGES.replace(
    "WRITTEN", CALLS
)
TYPED = {
    **WEATHER,
    "function": {
        "name": "get_weather",
        "parameters": {"type": "object", "properties": {"days": {"type": "integer"}}},
    },
}


@pytest.mark.parametrize(
    ("template", "written"),
    [
        (CODER, "<tool_call><function=get_weather>\n<parameter=days>\n3\n</parameter></function>"),
        (KIMI, '<|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:7'
         '<|tool_call_argument_begin|>{"days": 3}<|tool_call_end|><|tool_calls_section_end|>'),
        (MISTRAL, '[TOOL_CALLS]get_weather[ARGS]{"days": 3}'),
    ],
)  # fmt: skip
async def test_a_call_is_streamed_to_a_client_that_knows_nothing_of_its_format(
    template: str, written: str
) -> None:
    scripted = dispatcher(said(f"Let me see. {written}"))
    async with serving(dispatcher=scripted, model=chat_model(template)) as gateway:
        stream = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=USER, tools=[TYPED], stream=True
        )
        chunks = [chunk async for chunk in stream]

    deltas = [chunk.choices[0].delta for chunk in chunks]
    calls = [call.function for delta in deltas for call in delta.tool_calls or ()]
    assert "".join(delta.content or "" for delta in deltas) == "Let me see."
    assert calls[0].name == "get_weather"
    assert "".join(call.arguments or "" for call in calls) == '{"days": 3}'
    assert chunks[-1].choices[0].finish_reason == "tool_calls"
