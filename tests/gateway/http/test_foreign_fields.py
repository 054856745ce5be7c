"""Fields of other servers and newer clients: what they mean where that is known, else no error."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.chat_models import (
    HERMES,
    PARIS,
    PLAIN,
    USER,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    said,
)
from tests.gateway.scripted import (
    EOS,
    Script,
    ScriptedDispatcher,
    eos_token,
    error_of,
    serving,
    text_of,
    tokens_of,
)

from baton.gateway.output import formats

STRICT = {
    "type": "function",
    "function": {"name": "f", "strict": True, "parameters": {"type": "object"}},
}
"""Tags have no way to hold it."""
WORDY = HERMES + "[{{ verbosity }}]"
SWITCHED = HERMES + "{% if enable_thinking is false %}[no thoughts]{% endif %}"


def scripted(text: str, *, ends: bool = True) -> ScriptedDispatcher:
    return ScriptedDispatcher(Script(tokens=tokens_of(text), ends_with_eos=ends))


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"session_group": "x", "session_kind": None}, "session_group"),
        ({"messages": [{**USER[0], "mood": "bright", "id": None}]}, "messages[].mood"),
        ({"messages": [USER[0], {**USER[0], "mood": 1}] * 2}, "messages[].mood"),
        ({"prediction": {"content": "x"}, "verbosity": "low"}, "prediction, verbosity"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"store": True, "service_tier": "flex", "user": "u"}, "service_tier, store, user"),
        (
            {"stream_options": {"include_obfuscation": True}, "stream": True},
            "stream_options.include_obfuscation",
        ),
        ({"a\nb": 1, "do_sample": True}, "a?b"),
    ],
)  # fmt: skip
async def test_what_has_no_effect_is_told_in_a_header(fields: dict[str, Any], told: str) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.chat(**{"messages": USER, **fields})
        metrics = gateway.server.metrics_page()

    assert response.status_code == 200
    assert response.headers["x-baton-ignored"] == told
    assert "baton_gateway_ignored_fields_total{" in metrics


@pytest.mark.parametrize(("template", "told"), [(HERMES, "text.verbosity"), (WORDY, None)])
async def test_verbosity_is_a_variable_of_the_template_for_responses_too(
    template: str, told: str | None
) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(template)) as gateway:
        body = {"input": "hi", "text": {"verbosity": "low"}}
        response = await gateway.http.post("/v1/responses", json=body)
        (generation,) = gateway.dispatcher.generations

    assert response.json()["text"]["verbosity"] == "low"
    assert response.headers.get("x-baton-ignored") == told
    assert ("[low]" in text_of(generation.prompt)) == (template == WORDY)


async def test_nothing_is_told_where_every_field_has_its_effect() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.chat(messages=USER, temperature=0, functions=None, echo=None)

    assert response.status_code == 200 and "x-baton-ignored" not in response.headers


@pytest.mark.parametrize(
    ("fields", "remedy"),
    [
        ({"temprature": 0}, "did you mean temperature?"),
        ({"max_new_tokens": 4}, "use max_tokens"),
        ({"response_format": {"type": "text", "json_shema": {}}}, "did you mean json_schema?"),
        ({"echo": True}, "continue_final_message"),
        ({"chat_template": "{{ messages }}"}, "gateway.trust_request_chat_template"),
        ({"thinking": {"type": "deep"}}, "enabled"),
        ({"thinking": {"type": []}}, "enabled"),
        ({"guided_whitespace_pattern": " "}, "structured_outputs.regex"),
        ({"thinking_token_budget": 5}, "thinking.budget_tokens"),
        ({"documents": [{"text": "x"}]}, "put them into messages"),
        ({"regex": "a+"}, "structured_outputs.regex"),
        ({"system": "Be brief."}, "role system"),
        ({"do_sample": False}, "temperature"),
        ({"messages": [{"role": "assistant", "content": "a", "prefix": True}]}, "continue_final"),
        ({"truncate_prompt_tokens": 0}, "at least 1"),
        ({"guided_regex": "a", "guided_json": {}}, "exclude"),
        (
            {"messages": [{**USER[0], **{f"field_{i}": i for i in range(33)}}]},
            "too many unknown fields",
        ),
    ],
)
async def test_what_would_change_the_answer_is_refused(fields: dict[str, Any], remedy: str) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.chat(**{"messages": USER, **fields})

    assert response.status_code == 400 and remedy in error_of(response)["message"]


async def test_an_operator_may_have_all_unknown_fields_refused() -> None:
    async with serving(unknown_fields="refuse") as gateway:
        response = await gateway.complete(prompt="hi", session_group="x")

    assert error_of(response)["param"] == "session_group"


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"store": True}, "store"),
        ({"enable_thinking": False}, "enable_thinking"),
        ({"tools": [STRICT]}, "tools[0].function.strict"),
    ],
)
async def test_fields_that_do_nothing_on_this_model_are_refused_with_them(
    fields: dict[str, Any], param: str
) -> None:
    model = chat_model(
        "{{ tools }}{# <tool_call> <function= <parameter= #}{{ messages[0].content }}"
    )
    async with serving(
        dispatcher=dispatcher(said("x")), model=model, unknown_fields="refuse"
    ) as gateway:
        response = await gateway.chat(messages=USER, **fields)
        plain = await gateway.chat(
            messages=USER, temperature=0, user="u", safety_identifier="s", store=False
        )

    assert response.status_code == 400 and error_of(response)["param"] == param
    assert plain.status_code == 200


async def test_the_stop_string_is_part_of_the_text_if_asked_for() -> None:
    async with serving(dispatcher=scripted("one. two. three.")) as gateway:
        without = await gateway.complete(prompt="hi", stop=". t")
        having = await gateway.complete(prompt="hi", stop=". t", include_stop_str_in_output=True)

    texts = [response.json()["choices"][0]["text"] for response in (without, having)]
    assert texts == ["one", "one. t"]


async def test_special_tokens_show_if_asked_for() -> None:
    script = Script(tokens=[*tokens_of("hi"), eos_token(), *tokens_of("ho")])
    async with serving(dispatcher=ScriptedDispatcher(script)) as gateway:
        hidden = await gateway.complete(prompt="hi", ignore_eos=True)
        shown = await gateway.complete(prompt="hi", ignore_eos=True, skip_special_tokens=False)

    texts = [response.json()["choices"][0]["text"] for response in (hidden, shown)]
    assert texts == ["hiho", f"hi{EOS}ho"]


async def test_the_last_tokens_of_a_prompt_are_kept() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        await gateway.complete(prompt="the quick brown fox", truncate_prompt_tokens=3)
        await gateway.chat(messages=USER, truncate_prompt_tokens=2)
        await gateway.complete(prompt="fox " * 5000, truncate_prompt_tokens=-1, max_tokens=96)
        refused = await gateway.chat(
            messages=USER, truncate_prompt_tokens=1, cache_control={"type": "ephemeral"}
        )
    short, chat, long = (generation.prompt for generation in gateway.dispatcher.generations)

    assert "the quick brown fox".endswith(text_of(short)) and len(short) == 3
    assert len(chat) == 2 and text_of(chat).endswith("<|assistant|>")
    assert len(long) == 4096 - 96
    assert error_of(refused)["param"] == "truncate_prompt_tokens"


async def test_tokens_are_named_by_their_ids_and_the_answer_as_the_body_says() -> None:
    async with serving(dispatcher=scripted("hi")) as gateway:
        response = await gateway.complete(
            prompt="hi", logprobs=1, return_tokens_as_token_ids=True, request_id="mine"
        )

    answer = response.json()
    names = [f"token_id:{token}" for token in tokens_of("hi")]
    assert answer["choices"][0]["logprobs"]["tokens"][: len(names)] == names
    assert answer["id"] == "cmpl-mine"


async def test_completions_know_the_newer_name_of_max_tokens() -> None:
    async with serving() as gateway:
        await gateway.complete(prompt="hi", max_completion_tokens=3)
        await gateway.complete(prompt="hi", max_tokens=5, max_completion_tokens=4)
        refused = await gateway.complete(prompt="hi", max_completion_tokens=0)
        lengths = [one.sampling.max_tokens for one in gateway.dispatcher.generations]

    assert lengths == [3, 4] and error_of(refused)["param"] == "max_completion_tokens"


async def test_guided_decoding_is_structured_output() -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        await gateway.chat(messages=USER, guided_choice=["yes", "no"])
        await gateway.chat(messages=USER, structured_outputs={"choice": ["yes", "no"]})
    old, new = (generation.sampling.grammar for generation in gateway.dispatcher.generations)

    assert old is not None and old == new


@pytest.mark.parametrize(
    "fields",
    [
        {"enable_thinking": False},
        {"thinking": False},
        {"thinking": {"type": "disabled"}},
        {"reasoning": {"enabled": False}},
        {"enable_thinking": True, "chat_template_kwargs": {"enable_thinking": False}},
    ],
)
async def test_switches_of_reasoning_reach_the_template(fields: dict[str, Any]) -> None:
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(SWITCHED)) as gateway:
        response = await gateway.chat(messages=USER, **fields)
        (generation,) = gateway.dispatcher.generations

    assert "[no thoughts]" in text_of(generation.prompt)
    assert "x-baton-ignored" not in response.headers


async def test_no_budget_of_thinking_is_none_in_the_template() -> None:
    template = "{% if thinking_budget is defined %}[budget]{% endif %}{{ messages[0].content }}"
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(template)) as gateway:
        thinking = {"type": "enabled", "budget_tokens": None}
        await gateway.chat(messages=USER, thinking=thinking)
        await gateway.chat(messages=USER, thinking={**thinking, "budget_tokens": 9})
        without, having = (text_of(g.prompt) for g in gateway.dispatcher.generations)

    assert "[budget]" not in without and "[budget]" in having


async def test_thousands_of_ignored_fields_are_told_in_a_header_of_some() -> None:
    tools = [{"type": f"kind_{number}"} for number in range(3000)]
    async with serving(
        dispatcher=dispatcher(said("x")), model=chat_model(), hosted_tools="ignore"
    ) as gateway:
        response = await gateway.chat(messages=USER, tools=tools)

    told = response.headers["x-baton-ignored"].split(", ")
    assert response.status_code == 200 and len(", ".join(told)) < 3000
    assert told[0] == "tools[kind_0]" and told[-2] == f"tools[kind_{len(told) - 2}]"
    assert told[-1] == "..."


async def test_a_body_made_to_keep_the_gateway_busy_is_refused_or_answered_at_once() -> None:
    long_name = "x" * (4 << 20)
    many = (
        b'{"prompt": ['
        + b"1," * (2 << 20)
        + b'1], "messages": [{"role": "user"'
        + b"".join(b', "x%d": 1' % number for number in range(31))
    )
    async with serving(max_body_bytes=32 << 20) as gateway:
        named = await gateway.complete(prompt="hi", **{long_name: 1})
        cut_off = await gateway.http.post("/v1/completions", content=b'{"foo": 1, "prompt": "hi"')
        deep = b'{"foo": ' + b"[" * 100_000
        nested = await gateway.http.post("/v1/completions", content=deep)
        large = await gateway.http.post("/v1/chat/completions", content=many + b"}]}")

    assert named.status_code == 200 and named.headers["x-baton-ignored"] == "x" * 64
    assert [response.status_code for response in (cut_off, nested, large)] == [400] * 3


async def test_what_the_template_leaves_out_is_offered_in_the_message_of_the_user() -> None:
    two_roles = (
        "{% for m in messages %}{% if m.role == 'user' %}<|user|>{{ m.content }}"
        "{% elif m.role == 'assistant' %}<|assistant|>{{ m.content }}{% endif %}{% endfor %}"
    )
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model(two_roles)) as gateway:
        await gateway.chat(messages=USER, tools=[WEATHER])
        (generation,) = gateway.dispatcher.generations

    assert "<|user|>You may call functions" in text_of(generation.prompt)


async def test_call_marks_without_tools_in_a_template_are_not_its_own_format() -> None:
    """As of DeepSeek's first templates: what the model is told is what is looked for."""
    deepseek = PLAIN + "{% if call %}" + formats.CALLS_BEGIN + "{% endif %}"
    script = said(call_text("get_weather", PARIS))
    async with serving(dispatcher=dispatcher(script), model=chat_model(deepseek)) as gateway:
        response = await gateway.chat(messages=USER, tools=[WEATHER])

    assert response.headers["x-baton-tool-format"] == "generic"
    assert response.json()["choices"][0]["finish_reason"] == "tool_calls"


async def test_an_answer_without_content_comes_back_as_it_was_given() -> None:
    """Reasoning that max_tokens cut: its content is null."""
    asked = {"role": "assistant", "content": None, "reasoning_content": "hm"}
    async with serving(dispatcher=dispatcher(said("x")), model=chat_model()) as gateway:
        response = await gateway.chat(messages=[*USER, asked, *USER])
        (generation,) = gateway.dispatcher.generations

    assert response.status_code == 200
    assert "<|assistant|>(hm)<|user|>" in text_of(generation.prompt)
