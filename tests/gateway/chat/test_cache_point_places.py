"""Cache points in requests: where in the prompt they are, and what is refused."""

from __future__ import annotations

from typing import Any

import grpc.aio
import pytest
from tests.gateway.chat_models import HERMES, WEATHER, chat_model, dispatcher, openai_of, said
from tests.gateway.scripted import MODEL, Serving, serving, text_of

from baton.core.messages import CachePoint
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

EPHEMERAL = {"type": "ephemeral"}
HOUR = {"type": "ephemeral", "ttl": "1h"}
SYSTEM = {"role": "system", "content": "You know all about foxes."}
USER = {"role": "user", "content": "Tell me of the quick brown one."}
ONLY_WHOLE = (
    "{% if messages[-1].role != 'user' %}{{ raise_exception('users end it') }}{% endif %}" + HERMES
)
"""Refuses the beginnings of most conversations."""
TRIMMING = (
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content | trim }}<|end|>{% endfor %}<|assistant|>"
)
FORGETFUL = (
    "{% for m in messages %}{% if m.role == 'user' or loop.last %}"
    "<|{{ m.role }}|>{{ m.content }}{% endif %}{% endfor %}<|assistant|>"
)
"""Leaves out what an assistant has said, unless it comes last."""


async def points_of(template: str, messages: list[Any], **others: Any) -> list[tuple[str, float]]:
    """The text before each cache point, and its time to live."""
    async with serving(dispatcher=dispatcher(said("ok")), model=chat_model(template)) as gateway:
        body = {"messages": messages, **others}
        response = await gateway.http.post("/v1/chat/completions", json=body)
        assert response.status_code == 200, response.text
        return read_points(gateway)


def read_points(gateway: Serving) -> list[tuple[str, float]]:
    generation = gateway.dispatcher.generations[-1]
    return [
        (text_of(generation.prompt[: point.num_tokens]), point.ttl_s)
        for point in generation.cache_points
    ]


async def test_a_point_is_where_the_template_has_written_the_message() -> None:
    points = await points_of(HERMES, [{**SYSTEM, "cache_control": EPHEMERAL}, USER])

    assert points == [("<|system|>You know all about foxes.", 300.0)]


async def test_each_point_has_its_own_time_to_live() -> None:
    points = await points_of(
        HERMES, [{**SYSTEM, "cache_control": HOUR}, {**USER, "cache_control": EPHEMERAL}]
    )

    before = "<|system|>You know all about foxes."
    assert points == [
        (before, 3600.0),
        (f"{before}<|user|>Tell me of the quick brown one.", 300.0),
    ]


async def test_tools_that_the_template_writes_first_are_before_the_point() -> None:
    [(before, _)] = await points_of(
        HERMES, [{**SYSTEM, "cache_control": EPHEMERAL}, USER], tools=[WEATHER]
    )

    assert before.startswith("[tools]") and "get_weather" in before
    assert before.endswith("<|system|>You know all about foxes.")


async def test_a_part_of_a_message_may_have_a_point() -> None:
    parts = [
        {"type": "text", "text": "A long document.", "cache_control": EPHEMERAL},
        {"type": "text", "text": "A question."},
    ]

    points = await points_of(HERMES, [{"role": "user", "content": parts}])

    assert points == [("<|user|>A long document.", 300.0)]


async def test_the_last_part_ends_with_its_message() -> None:
    parts = [{"type": "text", "text": "Both.", "cache_control": EPHEMERAL}]

    points = await points_of(TRIMMING, [{"role": "user", "content": parts}, USER])

    assert points == [("<|user|>Both.<|end|>", 300.0)]


async def test_the_requests_own_point_is_behind_the_last_message() -> None:
    points = await points_of(HERMES, [SYSTEM, USER], cache_control=HOUR)

    assert points == [
        ("<|system|>You know all about foxes.<|user|>Tell me of the quick brown one.", 3600.0)
    ]


async def test_points_at_the_same_place_are_one_of_the_longer_time() -> None:
    messages = [SYSTEM, {**USER, "cache_control": EPHEMERAL}]

    [(_, ttl_s)] = await points_of(HERMES, messages, cache_control=HOUR)

    assert ttl_s == 3600.0


async def test_a_template_that_refuses_the_beginning_alone_shows_where_the_text_ends() -> None:
    points = await points_of(ONLY_WHOLE, [{**SYSTEM, "cache_control": EPHEMERAL}, USER])

    assert points == [("<|system|>You know all about foxes.", 300.0)]


async def test_white_space_that_a_template_cuts_off_does_not_move_the_point() -> None:
    messages = [{"role": "user", "content": " Hello world \n", "cache_control": EPHEMERAL}, USER]

    points = await points_of(TRIMMING, messages)

    assert points == [("<|user|>Hello world<|end|>", 300.0)]


async def test_behind_a_message_that_is_left_out_the_point_is_where_it_would_have_been() -> None:
    said_before = {"role": "assistant", "content": "Forgotten.", "cache_control": EPHEMERAL}

    points = await points_of(FORGETFUL, [USER, said_before, USER])

    assert points == [("<|user|>Tell me of the quick brown one.", 300.0)]


async def test_a_last_message_that_goes_on_may_have_a_point() -> None:
    begun = {"role": "assistant", "content": "The quick", "cache_control": EPHEMERAL}

    points = await points_of(
        TRIMMING,
        [USER, begun],
        continue_final_message=True,
        add_generation_prompt=False,
    )

    text = "<|user|>Tell me of the quick brown one.<|end|><|assistant|>The quick"
    assert points == [(text, 300.0)]


async def test_every_token_before_a_point_is_one_of_the_prompts_own() -> None:
    """The text may be cut where the whole prompt has one token: then the point is before it."""
    parts = [
        {"type": "text", "text": "the quick brown fo", "cache_control": EPHEMERAL},
        {"type": "text", "text": "jumps"},
    ]

    [(before, _)] = await points_of(HERMES, [{"role": "user", "content": parts}])

    assert "<|user|>the quick brown fo".startswith(before)
    assert len(before) > len("<|user|>the quick")


async def test_a_prompt_of_text_has_its_point_at_its_end() -> None:
    async with serving(dispatcher=dispatcher(said("ok"))) as gateway:
        body = {"prompt": ["the quick", "brown fox"], "cache_control": HOUR}
        await gateway.http.post("/v1/completions", json=body)

        found = [(g.prompt, g.cache_points) for g in gateway.dispatcher.generations]

    assert [points for _, points in found] == [
        (CachePoint(len(prompt), 3600.0),) for prompt, _ in found
    ]


async def test_items_of_a_response_and_their_parts_have_points_as_well() -> None:
    items = [
        {"role": "user", "content": "First.", "cache_control": HOUR},
        {"type": "function_call", "call_id": "c", "name": "get_weather", "arguments": "{}"},
        {
            "type": "function_call_output",
            "call_id": "c",
            "output": [{"type": "input_text", "text": "Sunny.", "cache_control": EPHEMERAL}],
        },
        {"role": "user", "content": "And now?"},
    ]
    async with serving(dispatcher=dispatcher(said("ok")), model=chat_model()) as gateway:
        body = {"input": items, "instructions": "Be brief."}
        response = await gateway.http.post("/v1/responses", json=body)
        points = read_points(gateway)

    assert response.status_code == 200, response.text
    begin = "<|system|>Be brief.<|user|>First."
    assert points[0] == (begin, 3600.0)
    assert points[1][0].startswith(begin) and points[1][0].endswith("<|tool|>Sunny.")


@pytest.mark.parametrize(
    ("message", "field"),
    [
        ({"cache_control": {"type": "ephemeral", "ttl": "2h"}}, "messages[1].cache_control.ttl"),
        ({"cache_control": {"type": "forever"}}, "messages[1].cache_control.type"),
        ({"cache_control": {"ttl": "5m"}}, "messages[1].cache_control.type"),
        ({"cache_control": {**EPHEMERAL, "tll": "5m"}}, "messages[1].cache_control.tll"),
        ({"cache_control": {**EPHEMERAL, "ttl": 300}}, "messages[1].cache_control.ttl"),
        (
            {"content": [{"type": "text", "text": "x", "cache_control": {"type": "x"}}]},
            "messages[1].content[0].cache_control.type",
        ),
    ],
)
async def test_a_wrong_point_is_refused_by_name(message: dict[str, Any], field: str) -> None:
    async with serving(model=chat_model()) as gateway:
        body = {"messages": [SYSTEM, {**USER, **message}]}
        response = await gateway.http.post("/v1/chat/completions", json=body)

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == field
    assert not gateway.dispatcher.generations


async def test_a_fifth_point_is_one_too_many() -> None:
    messages = [{**USER, "cache_control": EPHEMERAL} for _ in range(5)]
    async with serving(model=chat_model()) as gateway:
        response = await gateway.http.post("/v1/chat/completions", json={"messages": messages})

    assert response.status_code == 400
    assert response.json()["error"]["param"] == "messages[4].cache_control"
    assert "at most 4" in response.json()["error"]["message"]


async def test_grpc_has_the_same_points_and_the_same_refusals() -> None:
    hour = pb.CacheControl(ttl="1h")
    async with (
        serving(dispatcher=dispatcher(said("ok")), model=chat_model()) as gateway,
        grpc.aio.insecure_channel(gateway.grpc_target) as channel,
    ):
        stub = InferenceStub(channel)
        system = pb.ChatMessage(role="system", content="Be brief.", cache_control=hour)
        user = pb.ChatMessage(role="user", content="Hello")
        chat = pb.ChatRequest(messages=[system, user], cache_control=pb.CacheControl())
        _ = [response async for response in stub.Chat(chat)]
        points = read_points(gateway)
        generate = pb.GenerateRequest(text="the quick", cache_control=hour)
        _ = [response async for response in stub.Generate(generate)]
        last = gateway.dispatcher.generations[-1]
        system.cache_control.ttl = "2h"
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            _ = [r async for r in stub.Chat(pb.ChatRequest(messages=[system, user]))]

    assert points == [("<|system|>Be brief.", 3600.0), ("<|system|>Be brief.<|user|>Hello", 300.0)]
    assert last.cache_points == (CachePoint(len(last.prompt), 3600.0),)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "messages[0].cache_control.ttl" in str(refused.value.details())


async def test_usage_tells_cache_writes_from_reads() -> None:
    script = said("ok")
    script.num_cached, script.num_written = 2, 3
    async with serving(dispatcher=dispatcher(script), model=chat_model()) as gateway:
        client = openai_of(gateway)
        chat = await client.chat.completions.create(model=MODEL, messages=[USER])
        response = await client.responses.create(model=MODEL, input="Hello")
        metrics = gateway.server.metrics_page()

    assert chat.usage.prompt_tokens_details.cached_tokens == 2
    assert chat.usage.prompt_tokens_details.cache_write_tokens == 3
    assert response.usage.input_tokens_details.cached_tokens == 2
    assert response.usage.input_tokens_details.cache_write_tokens == 3
    assert (
        'baton_gateway_cache_write_tokens_total{model="org/tiny",tenant="",adapter=""} 6' in metrics
    )


async def test_a_request_without_points_has_none() -> None:
    assert await points_of(HERMES, [SYSTEM, USER]) == []
