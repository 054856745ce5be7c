"""Chat templates: transformers' semantics for honest ones, no way out for hostile ones."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.gateway.scripted import BOS, TEMPLATE, tokenizer_json
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from baton.core.errors import CheckpointError, InvalidRequest
from baton.gateway.text.chat_template import ChatTemplate

CHAT = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "What is <b>1 + 1</b>? 日本"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Why?"},
]

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the <weather>.",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
    },
}
CALLING: list[dict[str, Any]] = [
    {"role": "user", "content": "Weather in Paris?"},
    {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Look it up.",
        "tool_calls": [
            {
                "id": "c1",
                "type": "function",
                "function": {"name": "get_weather", "arguments": {"city": "Paris é"}},
            }
        ],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    {"role": "assistant", "content": "<think>ok</think>\n\nSunny."},
    {"role": "user", "content": "And Rome?"},
]

QWEN_LIKE = """\
{%- if tools %}
    {{- '<|im_start|>system\\n# Tools\\n<tools>' }}
    {%- for tool in tools %}{{- "\\n" }}{{- tool | tojson }}{%- endfor %}
    {{- "\\n</tools>\\n<tool_call>\\n{\\"name\\": <name>}\\n</tool_call><|im_end|>\\n" }}
{%- endif %}
{%- set ns = namespace(is_turn=true, last=messages | length - 1) %}
{%- for message in messages[::-1] %}
    {%- set index = (messages | length - 1) - loop.index0 %}
    {%- if ns.is_turn and message.role == "user" and message.content is string %}
        {%- set ns.is_turn = false %}{%- set ns.last = index %}
    {%- endif %}
{%- endfor %}
{%- for message in messages %}
    {%- if message.role == "assistant" %}
        {%- set content = message.content if message.content is string else '' %}
        {%- set reasoning = '' %}
        {%- if message.reasoning_content is string %}
            {%- set reasoning = message.reasoning_content %}
        {%- elif '</think>' in content %}
            {%- set reasoning = content.split('</think>')[0].split('<think>')[-1].strip('\\n') %}
            {%- set content = content.split('</think>')[-1].lstrip('\\n') %}
        {%- endif %}
        {{- '<|im_start|>assistant\\n' + '<think>' + reasoning + '</think>' + content }}
        {%- for call in message.tool_calls or [] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {{- '<tool_call>{"name": "' + call.name + '", "arguments": ' }}
            {%- if call.arguments is string %}{{- call.arguments }}
            {%- else %}{{- call.arguments | tojson }}{%- endif %}
            {{- '}</tool_call>' }}
        {%- endfor %}
        {{- '<|im_end|>\\n' }}
    {%- elif message.role == "tool" %}
        {%- if loop.first or (messages[loop.index0 - 1].role != "tool") %}
            {{- '<|im_start|>user' }}
        {%- endif %}
        {{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' }}
    {%- else %}
        {{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{%- endif %}
"""

LLAMA_LIKE = """\
{%- if messages[0]['role'] == 'system' %}
    {%- set system = messages[0]['content'] | trim %}
    {%- set messages = messages[1:] %}
{%- else %}
    {%- set system = '' %}
{%- endif %}
{{- bos_token + '[S]' + system ~ '[/S]' }}
{%- set ns = namespace(count=0, roles=[]) %}
{% for message in messages %}
    {%- if (message.role == 'user') != (loop.index0 % 2 == 0) %}
        {{- raise_exception('Roles must alternate') }}
    {%- endif %}
    {%- set ns.count = ns.count + message.content | length %}
    {%- set ns.roles = ns.roles + [message.role] %}
    {%- if loop.last and message.role != 'user' %}{% break %}{% endif %}
    {%- generation %}{{ message | tojson }}{% endgeneration %}
    {{ '<' ~ message['role'].upper() ~ '>' }}{{ message.content.split('?')[0] }}
{% endfor %}
{{ ns.count }} {{ ns.roles | join(',') }} {{ {'a': [1, none, true]} | tojson(indent=2) }}
{% macro end(word) %}<{{ word * 2 }}>{% endmacro %}{{ end('e') }}{{ loop is defined }}
{%- if add_generation_prompt %}{{ '%s:' % 'assistant' }}{{ "{:>5}".format(7) }}{% endif %}
"""


@pytest.mark.parametrize("template", [TEMPLATE, LLAMA_LIKE])
@pytest.mark.parametrize("adds", [True, False])
def test_prompts_equal_those_of_transformers(template: str, adds: bool) -> None:
    oracle = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(tokenizer_json()), bos_token=BOS
    )
    expected = oracle.apply_chat_template(
        CHAT, chat_template=template, tokenize=False, add_generation_prompt=adds
    )

    text = ChatTemplate(template, {"bos_token": BOS}).render(CHAT, add_generation_prompt=adds)

    assert text == expected


@pytest.mark.parametrize("has_tools", [True, False])
def test_prompts_with_tools_equal_those_of_transformers(has_tools: bool) -> None:
    oracle = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(tokenizer_json()), bos_token=BOS
    )
    tools: Any = [TOOL] if has_tools else None
    expected = oracle.apply_chat_template(
        CALLING, tools=tools, chat_template=QWEN_LIKE, tokenize=False, add_generation_prompt=True
    )

    text = ChatTemplate(QWEN_LIKE, {"bos_token": BOS}).render(CALLING, tools=tools)

    assert text == expected


@pytest.mark.parametrize("last", ["The answer", "  The answer is ", "4", "The [/S]\n"])
def test_prompts_that_go_on_equal_those_of_transformers(last: str) -> None:
    oracle = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(tokenizer_json()), bos_token=BOS
    )
    messages = [*CHAT, {"role": "assistant", "content": last}]
    expected = oracle.apply_chat_template(
        messages, chat_template=TEMPLATE, tokenize=False, continue_final_message=True
    )

    text = ChatTemplate(TEMPLATE, {"bos_token": BOS}).render_open(messages)

    assert text == expected


@pytest.mark.parametrize("content", ["", "  ", "lost"])
def test_what_the_template_does_not_write_cannot_be_continued(content: str) -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.role }}{% endfor %}", {})

    with pytest.raises(InvalidRequest, match="continued"):
        template.render_open([{"role": "assistant", "content": content}])


@pytest.mark.parametrize(
    ("source", "is_text"),
    [
        ("{{ '```json' + '\\n' + tool['function']['arguments'] + '\\n' }}", True),
        ("{{ '<sep>' + tool['function']['arguments'] + '<end>' }}", True),
        ("{{ call.name ~ call.arguments }}", True),
        ("{{ tool_call.arguments | tojson }}", False),
        ("{{ '<a>' + tool['arguments']|tojson + '</a>' }}", False),
        ("{% for k, v in call.arguments | items %}{{ k + v }}{% endfor %}", False),
        (QWEN_LIKE, False),
        (TEMPLATE, False),
    ],
)
def test_templates_that_join_arguments_to_text_are_given_text(source: str, is_text: bool) -> None:
    assert ChatTemplate(source, {}).has_text_arguments == is_text


def test_templates_know_the_time() -> None:
    template = ChatTemplate("{{ strftime_now('%Y-%m-%d') }}", {}, now=lambda: datetime(2026, 2, 3))

    assert template.render(CHAT) == "2026-02-03"


def test_switches_of_the_template_can_be_set() -> None:
    template = ChatTemplate("{% if enable_thinking %}think{% else %}answer{% endif %}", {})

    assert template.render(CHAT) == "answer"
    assert template.render(CHAT, variables={"enable_thinking": True}) == "think"


def test_messages_cannot_be_replaced_by_a_variable() -> None:
    with pytest.raises(InvalidRequest, match="messages") as caught:
        ChatTemplate("", {}).render(CHAT, variables={"messages": []})

    assert caught.value.field == "chat_template_kwargs"


def test_what_a_template_refuses_is_the_callers_mistake() -> None:
    with pytest.raises(InvalidRequest, match="system comes first") as caught:
        ChatTemplate(TEMPLATE, {"bos_token": BOS}).render(CHAT[1:2] + CHAT[:1])

    assert caught.value.field == "messages"


def test_a_broken_template_is_found_when_it_is_loaded() -> None:
    with pytest.raises(CheckpointError, match="compiled"):
        ChatTemplate("{% for %}", {})
