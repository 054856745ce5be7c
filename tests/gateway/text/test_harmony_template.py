"""A chat template such as GPT-OSS has: channels, tools as TypeScript, a date, an effort."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import pytest
from tests.gateway.scripted import BOS, tokenizer_json
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from baton.core.errors import InvalidRequest
from baton.gateway.text.chat_template import ChatTemplate

HARMONY_LIKE = """\
{%- macro typed(spec, required, is_nullable=false) -%}
    {%- if spec.type == "array" -%}
        {%- set inner = typed(spec['items'], required) -%}
        {{- "any[]" if inner|length > 50 else inner + "[]" }}
        {%- if spec.nullable -%}{{- " | null" }}{%- endif -%}
    {%- elif spec.type is iterable and spec.type is not string and spec.type is not mapping -%}
        {{- spec.type | join(" | ") }}
    {%- elif spec.type == "string" -%}
        {%- if spec.enum -%}{{- '"' + spec.enum|join('" | "') + '"' -}}
        {%- else -%}{{- "string" }}{%- endif -%}
    {%- elif spec.type == "object" and spec.properties -%}
        {{- "{\\n" }}
        {%- for name, part in spec.properties.items() -%}
            {{- name -}}{%- if name not in (spec.required or []) -%}{{- "?" }}{%- endif -%}
            {{- ": " }}
            {{ typed(part, spec.required or []) }}
            {%- if not loop.last -%}{{-", " }}{%- endif -%}
        {%- endfor -%}
        {{- "}" }}
    {%- else -%}{{- "any" }}{%- endif -%}
{%- endmacro -%}
{%- macro system() -%}
    {%- if reasoning_effort is not defined %}{%- set reasoning_effort = "medium" %}{%- endif %}
    {{- "Current date: " + strftime_now("%Y-%m-%d") + "\\n\\n" }}
    {{- "Reasoning: " + reasoning_effort + "\\n\\n" }}
    {%- if builtin_tools is defined and builtin_tools is not none %}
        {%- set found = namespace(browser=false) %}
        {%- for tool in builtin_tools %}
            {%- if tool == "browser" %}{%- set found.browser = true %}{%- endif %}
        {%- endfor %}
        {{- "browser: " ~ found.browser }}
    {%- endif -%}
    {{- "# Valid channels: analysis, commentary, final." }}
    {%- if tools -%}{{- "\\nCalls go to the commentary channel: 'functions'." }}{%- endif -%}
{%- endmacro -%}
{{- "<|start|>system<|message|>" }}{{- system() }}{{- "<|end|>" }}
{%- if messages[0].role == "developer" or messages[0].role == "system" %}
    {%- set developer = messages[0].content %}{%- set turns = messages[1:] %}
{%- else %}{%- set developer = "" %}{%- set turns = messages %}{%- endif %}
{%- if developer or tools %}
    {{- "<|start|>developer<|message|># Instructions\\n\\n" + developer }}
    {%- for tool in tools or [] %}
        {%- set tool = tool.function %}
        {{- "// " + tool.description + "\\ntype " + tool.name + " = (_: " }}
        {{- typed(tool.parameters, []) }}{{- ") => any;\\n" }}
    {%- endfor %}
    {{- "<|end|>" }}
{%- endif %}
{%- set last = namespace(name=none) %}
{%- for message in turns -%}
    {%- if message.role == 'assistant' -%}
        {%- if "thinking" in message and "<|channel|>final<|message|>" in message.thinking %}
            {{- raise_exception("channels do not belong into `thinking`") }}
        {%- endif %}
        {%- if "tool_calls" in message %}
            {%- set future = namespace(found=false) %}
            {%- for later in turns[loop.index:] %}
                {%- if later.role == 'assistant' and "tool_calls" not in later %}
                    {%- set future.found = true %}
                {%- endif %}
            {%- endfor %}
            {%- set call = message.tool_calls[0] %}
            {%- if call.function %}{%- set call = call.function %}{%- endif %}
            {%- if message.thinking and not future.found %}
                {{- "<|start|>assistant<|channel|>analysis<|message|>" + message.thinking }}
            {%- endif %}
            {{- "<|start|>assistant to=functions." + call.name + "<|channel|>commentary " }}
            {{- (call.content_type if call.content_type is defined else "json") + "<|message|>" }}
            {%- if call.arguments is string %}{{- call.arguments }}
            {%- else %}{{- call.arguments|tojson }}{%- endif %}
            {{- "<|call|>" }}
            {%- set last.name = call.name %}
        {%- else %}
            {{- "<|start|>assistant<|channel|>final<|message|>" + message.content + "<|end|>" }}
            {%- set last.name = none %}
        {%- endif %}
    {%- elif message.role == 'tool' -%}
        {%- if last.name is none %}{{- raise_exception("a tool nobody called") }}{%- endif %}
        {{- "<|start|>functions." + last.name + " to=assistant<|channel|>commentary<|message|>" }}
        {{- message.content|tojson + "<|end|>" }}
    {%- else -%}
        {{- "<|start|>user<|message|>" + message.content + "<|end|>" }}
    {%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}<|start|>assistant{%- endif -%}
"""
"""Written for this test, with what the published one asks of Jinja."""

TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "Tells the <weather>.",
        "parameters": {
            "type": "object",
            "required": ["cities"],
            "properties": {
                "cities": {"type": "array", "items": {"type": "string"}, "nullable": True},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "day": {"type": ["string", "integer"]},
            },
        },
    },
}
CALL = {"type": "function", "function": {"name": "get_weather", "arguments": {"cities": ["Rom"]}}}
CHAT: list[dict[str, Any]] = [
    {"role": "developer", "content": "Be brief."},
    {"role": "user", "content": "Weather in Rome?"},
    {"role": "assistant", "thinking": "Look it up.", "tool_calls": [CALL]},
    {"role": "tool", "content": "sunny"},
]
NOW = datetime(2026, 2, 3)


@pytest.mark.parametrize("num_messages", [2, 4])
@pytest.mark.parametrize("has_tools", [True, False])
@pytest.mark.parametrize("variables", [{}, {"reasoning_effort": "high", "builtin_tools": ["b"]}])
def test_prompts_with_channels_equal_those_of_transformers(
    num_messages: int, has_tools: bool, variables: dict[str, Any]
) -> None:
    oracle = PreTrainedTokenizerFast(  # type: ignore[no-untyped-call]
        tokenizer_object=Tokenizer.from_str(tokenizer_json()), bos_token=BOS
    )
    chat = CHAT[:num_messages]
    tools: Any = [TOOL] if has_tools else None
    fixed = HARMONY_LIKE.replace('strftime_now("%Y-%m-%d")', '"2026-02-03"')
    expected = oracle.apply_chat_template(
        chat,
        tools=tools,
        chat_template=fixed,
        tokenize=False,
        add_generation_prompt=True,
        **variables,
    )

    template = ChatTemplate(HARMONY_LIKE, {"bos_token": BOS}, now=lambda: NOW)

    assert template.render(chat, tools=tools, variables=variables) == expected
    assert not template.has_text_arguments


def test_what_the_template_refuses_is_the_users_mistake() -> None:
    template = ChatTemplate(HARMONY_LIKE, {}, now=lambda: NOW)

    with pytest.raises(InvalidRequest, match="a tool nobody called"):
        template.render([CHAT[1], CHAT[3]])
