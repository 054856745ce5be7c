"""Which template writes a chat: the model's for tools, one that a request names, or brings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.gateway.chat_models import HERMES, PLAIN, USER, WEATHER, chat_model, dispatcher, said
from tests.gateway.scripted import BOS, Serving, error_of, serving, text_of

from baton.gateway.text import template_sandbox
from baton.gateway.text.chat_templates import ChatTemplates
from baton.gateway.text.served_model import ServedModel

MINE = "{{ bos_token }}mine: {{ messages[0].content }}"
ENDLESS = "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"
TOO_DEEP = "{% for a in b %}" * 40 + "{% endfor %}" * 40


def hermes_2_pro() -> ServedModel:
    """Its template for tools is another than the one for conversations."""
    by_name = {"default": PLAIN, "tool_use": HERMES, "rag": "rag: {{ messages[0].content }}"}
    return replace(chat_model(), chat_templates=ChatTemplates.compile(by_name, {"bos_token": BOS}))


def prompts_of(gateway: Serving) -> list[str]:
    return [text_of(generation.prompt) for generation in gateway.dispatcher.generations]


async def test_a_request_with_tools_has_the_template_for_tools_and_its_format() -> None:
    text = (
        'Well. <tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
    )
    async with serving(dispatcher=dispatcher(said(text)), model=hermes_2_pro()) as gateway:
        with_tools = await gateway.chat(messages=USER, tools=[WEATHER])
        plain = await gateway.chat(messages=USER)
        prompts = prompts_of(gateway)

    assert with_tools.json()["choices"][0]["finish_reason"] == "tool_calls"
    assert "x-baton-tool-format" not in with_tools.headers  # else it is generic
    assert plain.json()["choices"][0]["message"]["content"] == text
    assert "[tools]" in prompts[0] and "[tools]" not in prompts[1]


async def test_any_request_may_name_a_template_of_the_model() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=hermes_2_pro()) as gateway:
        named = await gateway.chat(messages=USER, chat_template="rag")
        unknown = await gateway.chat(messages=USER, chat_template="rug")
        prompts = prompts_of(gateway)

    assert named.status_code == 200 and prompts == ["rag: Weather in Paris?"]
    assert error_of(unknown)["param"] == "chat_template"
    assert "'rag'" in error_of(unknown)["message"]


async def test_a_template_of_a_request_counts_only_where_the_operator_lets_it() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=hermes_2_pro()) as gateway:
        refused = await gateway.chat(messages=USER, chat_template=MINE)
    async with serving(
        dispatcher=dispatcher(said("x")), model=hermes_2_pro(), trust_request_chat_template=True
    ) as gateway:
        taken = await gateway.chat(messages=USER, chat_template=MINE)
        tokens = await gateway.http.post(
            "/tokenize", json={"messages": USER, "chat_template": MINE}
        )
        prompts = prompts_of(gateway)

    assert refused.status_code == 400
    assert "gateway.trust_request_chat_template" in error_of(refused)["message"]
    assert taken.status_code == 200 and prompts == [f"{BOS}mine: Weather in Paris?"]
    assert tokens.json()["count"] == taken.json()["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    "template",
    [ENDLESS, TOO_DEEP, "{% if %}", "{{ messages.__class__.mro() }}", "{{ 9" + "9" * 5000 + "}}"],
)
async def test_a_template_of_a_request_is_held_to_the_sandbox(
    template: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(template_sandbox, "MAX_CPU_S", 0.3)  # what nothing stops but time
    async with serving(
        dispatcher=dispatcher(said("x")), model=chat_model(), trust_request_chat_template=True
    ) as gateway:
        response = await gateway.chat(messages=USER, chat_template=template)
        after = await gateway.chat(messages=USER)

    assert response.status_code == 400 and "chat" in error_of(response)["message"]
    assert after.status_code == 200
