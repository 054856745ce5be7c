"""Hostile chat templates: no way out, no way to hang, no way to fill the memory."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.gateway.text.test_chat_template import CHAT, TOOL

from baton.core.errors import CheckpointError, InvalidRequest
from baton.gateway.text import template_sandbox
from baton.gateway.text.chat_template import ChatTemplate

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
    "repeated format": "{% set a = 'a' * 1000000 %}{{ ('{0}' * 10000).format(a) }}",
    "repeated format_map": (
        "{% set a = 'a' * 1000000 %}{{ ('{x}' * 10000).format_map({'x': a}) }}"
    ),
    "repeated %": "{% set a = 'a' * 1000000 %}{{ ('%(x)s' * 10000) % {'x': a} }}",
    "repeated format filter": "{% set a = 'a' * 1000000 %}{{ ('%(x)s' * 10000) | format(x=a) }}",
    "wide format of a list": "{{ ['%1000000000d'] | format(1) }}",
    "replaced in a list": "{% set a = 'a' * 1000000 %}{{ (['a'] * 100000) | replace('a', a) }}",
    "summed lists": "{{ ([[1] * 5] * 50000) | sum(start=[]) }}",
    "linked": "{% set a = 'a' * 1000000 %}{{ ('http://a.b ' * 1000000) | urlize(rel=a) }}",
    "separated json": (
        "{% set a = 'a' * 1000000 %}{{ range(9999) | list | tojson(separators=(a, a)) }}"
    ),
    "bytes of a string": "{{ 'a'.encode() * 10**10 }}",
    "bytes of a number": "{{ (1).to_bytes(10**10, 'big') }}",
    "bytes by attribute": "{{ (1 | attr('to_bytes'))(10**10, 'big') }}",
    "schema of a tool": "{{ tools[0].function.__class__ }}{{ tools.append(1) }}",
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
def test_a_hostile_template_is_stopped(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_CPU_S", 0.3)  # what nothing stops but time
    template = ChatTemplate(HOSTILE[name], {})

    with pytest.raises(InvalidRequest):
        template.render(CHAT, tools=[TOOL])


def test_a_long_complaint_is_cut_short() -> None:
    with pytest.raises(InvalidRequest) as caught:
        ChatTemplate("{{ raise_exception('x' * 1000000) }}", {}).render(CHAT)

    assert len(caught.value.message) < 1000


def test_private_attributes_are_invisible_to_filters_too() -> None:
    assert ChatTemplate("{{ '' | attr('__class__') }}", {}).render(CHAT) == ""


def test_limits_count_afresh_for_each_rendering() -> None:
    template = ChatTemplate("{% for i in range(99999) %}{% endfor %}ok", {})

    assert [template.render(CHAT) for _ in range(8)] == ["ok"] * 8


FRAGMENTS = """\
{{|}}|{%|%}|for x in messages|endfor|if x|endif|x|x.content| ~ |set x = |messages|[0]|(|)|''|*
macro f()|f()|endmacro|9999|.__class__|namespace()|range|in|-|not|tools|%|.format(|.items()
{'a': x}|[x]|('{0}%s' * 999)|.encode()|call f()|endcall|filter upper|endfilter""".replace(
    "\n", "|"
).split("|")
fragments = st.sampled_from(
    [*FRAGMENTS, "|tojson", "|length", "|join", "|sum(start=[])", "|format(x)", "|items", "\n"]
)


@settings(max_examples=200, deadline=None)
@given(st.lists(fragments, max_size=14))
def test_any_template_renders_or_fails_as_one(parts: list[str]) -> None:
    try:
        text = ChatTemplate(" ".join(parts), {}).render(CHAT, tools=[TOOL])
    except (CheckpointError, InvalidRequest):
        return
    assert isinstance(text, str)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=10,
)


@cache
def writing_json() -> ChatTemplate:
    return ChatTemplate("{{ value | tojson }}", {})


@given(json_values)
def test_tojson_writes_plain_json(value: Any) -> None:
    text = writing_json().render([], variables={"value": value})

    assert text == json.dumps(value, ensure_ascii=False)
