"""Chat templates: transformers' semantics for honest ones, no way out for hostile ones."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.scripted import BOS, TEMPLATE, tokenizer_json
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from baton.core.errors import CheckpointError, InvalidRequest
from baton.platform.gateway.text.chat_template import ChatTemplate

CHAT = [
    {"role": "system", "content": "  Be brief.\n"},
    {"role": "user", "content": "What is <b>1 + 1</b>? 日本"},
    {"role": "assistant", "content": "2"},
    {"role": "user", "content": "Why?"},
]

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


DOUBLING = "{% set ns = namespace(s=START) %}{% for i in range(60) %}STEP{% endfor %}END"


def doubling(start: str, step: str, end: str = "") -> str:
    return DOUBLING.replace("START", start).replace("STEP", step).replace("END", end)


HOSTILE = {
    "long loop": "{% for i in range(10**9) %}{% endfor %}",
    "nested loops": "{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}",
    "recursion": "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(0) }}",
    "tree of calls": (
        "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"
    ),
    "recursive loop": "{% for x in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "power": "{{ 10 ** (10 ** 10) }}",
    "long string": "{{ 'a' * 10**10 }}",
    "long list": "{{ ([1] * 10**9) | length }}",
    "doubled string": doubling("'aaaa'", "{% set ns.s = ns.s ~ ns.s %}"),
    "added string": doubling("'aaaa'", "{% set ns.s = ns.s + ns.s %}"),
    "doubled block": doubling(
        "'aaaa'", "{% set x %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = x %}"
    ),
    "doubled list": doubling("[1]", "{% set ns.s = ns.s + ns.s %}"),
    "shared list": doubling("[1]", "{% set ns.s = [ns.s, ns.s] %}", "{{ ns.s }}"),
    "shared dict": doubling("{}", "{% set ns.s = {'a': ns.s, 'b': ns.s} %}"),
    "shared by call": doubling("{}", "{% set ns.s = dict(a=ns.s, b=ns.s) %}"),
    "itself": "{% set ns = namespace() %}{% set ns.me = ns %}{% set x = [ns] %}{{ x }}",
    "wide %": "{{ '%1000000000d' % 1 }}",
    "wide % by argument": "{{ '%*d' % (1000000000, 1) }}",
    "wide format": "{{ '{:1000000000}'.format(1) }}",
    "wide format by argument": "{{ '{:{}}'.format(1, 1000000000) }}",
    "wide format filter": "{{ '%1000000000d' | format(1) }}",
    "justified": "{{ 'x'.ljust(10**10) }}",
    "centred": "{{ 'x' | center(10**10) }}",
    "indented": "{{ ('x\n' * 1000000) | indent(9000) }}",
    "indented json": "{{ [1] | tojson(indent=100000) }}",
    "expanded tabs": "{{ ('\t' * 1000000).expandtabs(9999) }}",
    "replaced": "{% set a = 'a' * 1000000 %}{{ a.replace('a', a) }}",
    "replaced by filter": "{% set a = 'a' * 1000000 %}{{ a | replace('a', a) }}",
    "replaced nothing": "{% set a = 'a' * 1000000 %}{{ a.replace('', a) }}",
    "joined": "{% set a = 'a' * 1000000 %}{{ a.join(a) }}",
    "joined by filter": "{% set a = 'a' * 1000000 %}{{ range(99999) | join(a) }}",
    "joined by keyword": "{% set a = 'a' * 1000000 %}{{ (a | list) | join(d=a) }}",
    "joined lazily": "{% set a = 'a' * 1000000 %}{{ a.join(range(9999) | map('string')) }}",
    "mapped": "{{ range(99999) | map('replace', '', 'a' * 9999) | list | length }}",
    "translated": "{% set a = 'a' * 1000000 %}{{ a.translate({97: a}) }}",
    "batched": "{{ [1] | batch(10**10, 1) | list }}",
    "lorem ipsum": "{{ lipsum(n=100000000) }}",
    "class": "{{ ''.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__['json'] }}",
    "private": "{% set ns = namespace(__class__=1) %}",
    "import": "{% import 'os' as os %}",
    "include": "{% include '/etc/passwd' %}",
    "mutation": "{{ messages.append(1) }}",
    "division": "{{ 1 / 0 }}",
    "undefined": "{{ nothing.at.all }}",
}


@pytest.mark.parametrize("name", HOSTILE)
def test_a_hostile_template_is_stopped(name: str) -> None:
    template = ChatTemplate(HOSTILE[name], {})

    with pytest.raises(InvalidRequest):
        template.render(CHAT)


def test_private_attributes_are_invisible_to_filters_too() -> None:
    assert ChatTemplate("{{ '' | attr('__class__') }}", {}).render(CHAT) == ""


def test_limits_count_afresh_for_each_rendering() -> None:
    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}ok", {})

    assert [template.render(CHAT) for _ in range(8)] == ["ok"] * 8


FRAGMENTS = """\
{{|}}|{%|%}|for x in messages|endfor|if x|endif|x|x.content| ~ |set x = |messages|[0]|(|)|''|*
macro f()|f()|endmacro|9999|.__class__|namespace()|range|in|-|not""".replace("\n", "|").split("|")
fragments = st.sampled_from([*FRAGMENTS, "|tojson", "|length", "|join", "\n"])


@settings(max_examples=200, deadline=None)
@given(st.lists(fragments, max_size=14))
def test_any_template_renders_or_fails_as_one(parts: list[str]) -> None:
    try:
        text = ChatTemplate(" ".join(parts), {}).render(CHAT)
    except (CheckpointError, InvalidRequest):
        return
    assert isinstance(text, str)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@given(json_values)
def test_tojson_writes_plain_json(value: Any) -> None:
    text = ChatTemplate("{{ value | tojson }}", {}).render([], variables={"value": value})

    assert text == json.dumps(value, ensure_ascii=False)
