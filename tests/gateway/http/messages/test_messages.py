"""POST /v1/messages through the official `anthropic` package."""

from __future__ import annotations

from typing import Any

import anthropic
import pytest
from pydantic import BaseModel
from tests.gateway.chat_models import (
    HERMES,
    PARIS,
    PLAIN,
    THINKING,
    call_text,
    chat_model,
    dispatcher,
    said,
)
from tests.gateway.http.messages.asking import BODY, HELLO, TOOL, anthropic_of
from tests.gateway.scripted import MODEL, Script, ScriptedDispatcher, serving, text_of, tokens_of

FOX = "the quick brown fox — 日本 🦊"
THOUGHT = f"<think>\nHm.</think>\nYes. {call_text('get_weather', PARIS)}"
SWITCHED = (
    THINKING + "{% if enable_thinking %}[think]{% elif enable_thinking is false %}[no]{% endif %}"
)
ASKED = {"thinking": {"type": "adaptive"}, "tools": [TOOL]}


async def test_a_conversation_is_answered() -> None:
    script = Script(tokens=tokens_of(FOX), ends_with_eos=True, num_cached=2, num_written=3)
    scripted = ScriptedDispatcher(script, max_model_len=4096)
    asked = {**BODY, "system": "Be brief.", "metadata": {"user_id": "u"}}
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        client = anthropic_of(gateway)
        answer = await client.messages.create(**asked, extra_body={"top_k": 3})
        counted = await client.messages.count_tokens(
            model=MODEL, system="Be brief.", messages=HELLO
        )

    generation = scripted.generations[0]
    assert text_of(generation.prompt) == "<|system|>Be brief.<|user|>Hello<|assistant|>"
    assert (generation.sampling.max_tokens, generation.sampling.top_k) == (500, 3)
    assert (answer.type, answer.role, answer.model) == ("message", "assistant", MODEL)
    assert [block.to_dict() for block in answer.content] == [{"type": "text", "text": FOX}]
    assert (answer.stop_reason, answer.stop_sequence) == ("end_turn", None)
    usage = answer.usage
    assert (usage.cache_read_input_tokens, usage.cache_creation_input_tokens) == (2, 3)
    assert usage.input_tokens + 5 == counted.input_tokens == len(generation.prompt)
    assert usage.output_tokens == len(tokens_of(FOX)) + 1
    assert answer.id == f"msg_{answer._request_id}"


async def test_the_packages_tool_runner_goes_on_without_the_thread_that_it_asks_for() -> None:
    async def get_weather(city: str) -> str:
        raise AssertionError(city)

    async with serving(dispatcher=dispatcher(said(FOX)), model=chat_model()) as gateway:
        runner = anthropic_of(gateway).beta.messages.tool_runner(
            **BODY, tools=[anthropic.beta_async_tool(get_weather)]
        )
        answers = [answer async for answer in runner]

    assert [answer.content[0].text for answer in answers] == [FOX]


async def test_a_stream_has_the_events_in_order_and_adds_up_to_the_whole() -> None:
    async with serving(dispatcher=dispatcher(said(THOUGHT)), model=chat_model(THINKING)) as gateway:
        client = anthropic_of(gateway)
        whole = await client.messages.create(**BODY, **ASKED)
        raw = (await gateway.http.post("/v1/messages", json={**BODY, **ASKED, "stream": True})).text
        async with client.messages.stream(**BODY, **ASKED) as stream:
            final = await stream.get_final_message()

    kinds = [line.removeprefix("event: ") for line in raw.split("\n") if line.startswith("event")]
    assert [kind for before, kind in zip(["", *kinds], kinds, strict=False) if kind != before] == [
        "message_start",
        "ping",
        *("content_block_start", "content_block_delta", "content_block_stop") * 3,
        "message_delta",
        "message_stop",
    ]
    thinking, text, call = final.content
    assert (thinking.thinking, text.text) == ("Hm.", "Yes.")
    assert (call.name, call.input) == ("get_weather", {"city": "Paris"})
    assert final.stop_reason == whole.stop_reason == "tool_use"
    assert final.usage == whole.usage
    reasoning = THOUGHT[: THOUGHT.index("</think>") + len("</think>")]
    assert final.usage.output_tokens_details.thinking_tokens == len(tokens_of(reasoning))
    assert thinking.signature and thinking == whole.content[0]
    assert [block.type for block in whole.content] == ["thinking", "text", "tool_use"]
    assert (whole.content[2].input, whole.content[2].id) != (call.input, call.id)
    assert whole.content[2].input == call.input


@pytest.mark.parametrize("template", [HERMES, PLAIN])
async def test_a_tool_loop_goes_three_turns(template: str) -> None:
    """On a model with a format for calls, and on one without."""
    scripted = dispatcher(said(f"Let me look. {call_text('get_weather', PARIS)}"))
    messages: list[Any] = [*HELLO]
    async with serving(dispatcher=scripted, model=chat_model(template)) as gateway:
        client = anthropic_of(gateway)
        for turn in range(3):
            async with client.messages.stream(
                **{**BODY, "messages": messages}, tools=[TOOL]
            ) as stream:
                answer = await stream.get_final_message()
            calls = [block for block in answer.content if block.type == "tool_use"]
            results = [
                {"type": "tool_result", "tool_use_id": call.id, "content": f"{turn} C"}
                for call in calls
            ]
            messages += [
                {"role": "assistant", "content": answer.content},
                {"role": "user", "content": results},
            ]
            assert (answer.stop_reason, len(calls)) == ("tool_use", 1)

    prompt = text_of(scripted.generations[-1].prompt)
    assert prompt.count("Let me look.") == 2
    assert prompt.index("0 C") < prompt.index("1 C")


@pytest.mark.parametrize(
    ("thinking", "shown", "switch"),
    [
        (None, [], "[no]"),
        ({"type": "disabled"}, [], "[no]"),
        ({"type": "enabled", "budget_tokens": 1024}, ["Hm."], "[think]"),
        ({"type": "adaptive", "display": "omitted"}, [""], "[think]"),
    ],
)
async def test_thinking_is_switched_and_shown_as_asked(
    thinking: Any, shown: list[str], switch: str
) -> None:
    scripted = dispatcher(said("<think>Hm.</think>Yes."))
    async with serving(dispatcher=scripted, model=chat_model(SWITCHED)) as gateway:
        body = {**BODY, "thinking": thinking}
        answer = await anthropic_of(gateway).messages.with_raw_response.create(**body)

    content = (await answer.parse()).content
    assert [block.thinking for block in content[:-1]] == shown
    assert all(block.signature for block in content[:-1]) and content[-1].text == "Yes."
    assert text_of(scripted.generations[0].prompt).endswith(switch)
    is_budgeted = bool(thinking) and "budget_tokens" in thinking
    told = answer.headers.get("x-baton-ignored")
    assert told == ("thinking.budget_tokens" if is_budgeted else None)


async def test_a_stop_sequence_is_named() -> None:
    async with serving(dispatcher=dispatcher(said(FOX)), model=chat_model()) as gateway:
        body = {**BODY, "stop_sequences": ["dog", "brown"]}
        whole = await anthropic_of(gateway).messages.create(**body)
        async with anthropic_of(gateway).messages.stream(**body) as stream:
            final = await stream.get_final_message()

    for answer in (whole, final):
        assert answer.content[0].text == "the quick "
        assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", "brown")


@pytest.mark.parametrize(
    ("max_tokens", "reason"), [(3, "max_tokens"), (4000, "model_context_window_exceeded")]
)
async def test_an_answer_that_is_cut_short_says_by_what(max_tokens: int, reason: str) -> None:
    num_prompt = len(tokens_of("<|user|>Hello<|assistant|>"))
    scripted = ScriptedDispatcher(said(FOX, ends=False), max_model_len=num_prompt + 5)
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        answer = await anthropic_of(gateway).messages.create(**{**BODY, "max_tokens": max_tokens})

    assert answer.stop_reason == reason
    assert answer.usage.output_tokens == min(max_tokens, 5)


async def test_a_call_that_is_cut_short_is_no_text_and_no_object() -> None:
    cut = call_text("get_weather", PARIS).partition("Par")[0]
    async with serving(dispatcher=dispatcher(said(cut, ends=False)), model=chat_model()) as gateway:
        body = {**BODY, "max_tokens": len(tokens_of(cut)), "tools": [TOOL]}
        answer = await anthropic_of(gateway).messages.create(**body)

    (call,) = answer.content
    assert (call.type, answer.stop_reason) == ("tool_use", "max_tokens")
    assert call.input == {"INVALID_JSON": '{"city": "'}


async def test_an_answer_goes_on_with_what_the_assistant_began() -> None:
    scripted = dispatcher(said("lo"))
    began = [*HELLO, {"role": "assistant", "content": "Hel"}]
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        client = anthropic_of(gateway)
        answer = await client.messages.create(**{**BODY, "messages": began})
        counted = await client.messages.count_tokens(model=MODEL, messages=began)

    assert text_of(scripted.generations[0].prompt) == "<|user|>Hello<|assistant|>Hel"
    assert answer.content[0].text == "lo"
    assert counted.input_tokens == answer.usage.input_tokens


ONE = {"disable_parallel_tool_use": True}
FORCED = f'[{{"name": "get_weather", "parameters": {PARIS}}}]'
TWO_CALLS = call_text("get_weather", PARIS) * 2


@pytest.mark.parametrize(
    ("choice", "output", "num_calls"),
    [
        ({"type": "any", **ONE}, FORCED, 1),
        ({"type": "tool", "name": "get_weather"}, PARIS, 1),
        ({"type": "none"}, PARIS, 0),
        ({"type": "auto", **ONE}, TWO_CALLS, 1),
    ],
)
async def test_tools_are_called_as_they_are_chosen(
    choice: Any, output: str, num_calls: int
) -> None:
    scripted = dispatcher(said(output))
    async with serving(dispatcher=scripted, model=chat_model()) as gateway:
        answer = await anthropic_of(gateway).messages.create(
            **BODY, tools=[TOOL], tool_choice=choice
        )

    calls = [block.name for block in answer.content if block.type == "tool_use"]
    assert calls == ["get_weather"] * num_calls
    is_offered = choice["type"] != "none"
    assert (scripted.generations[0].sampling.grammar is not None) == is_offered


class Place(BaseModel):
    city: str


async def test_answers_are_parsed_by_the_package() -> None:
    scripted = dispatcher(said(PARIS))
    async with serving(dispatcher=scripted, model=chat_model(PLAIN)) as gateway:
        answer = await anthropic_of(gateway).messages.parse(**BODY, output_format=Place)

    assert answer.parsed_output == Place(city="Paris")
    grammar = scripted.generations[0].sampling.grammar
    assert grammar is not None and "city" in grammar.source


async def test_it_is_one_operation_of_the_gateway_like_others() -> None:
    async with serving(dispatcher=dispatcher(said("Yes.")), model=chat_model(PLAIN)) as gateway:
        headers = {"x-request-id": "mine", "x-baton-receipt": "1"}
        body = {**BODY, "tools": [TOOL], "mood": "bright"}
        whole = await gateway.http.post("/v1/messages", json=body, headers=headers)
        streamed = await gateway.http.post(
            "/v1/messages", json={**body, "stream": True}, headers=headers
        )
        metrics = gateway.server.metrics_page()

    assert whole.headers["request-id"] == whole.headers["x-request-id"] == "mine"
    assert whole.headers["x-baton-ignored"] == "mood"
    assert whole.headers["x-baton-tool-format"] == "generic"
    assert whole.json()["baton"]["decode_replica"] == "d0"
    assert '"baton":{"decode_replica":"d0"' in streamed.text.partition("message_delta")[2]
    assert 'method="/v1/messages",status="200"} 2' in metrics
