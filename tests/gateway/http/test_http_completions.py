"""/v1/completions and /v1/chat/completions as a client with nothing but HTTP sees them."""

from __future__ import annotations

from dataclasses import replace

from tests.gateway.scripted import (
    ASSISTANT,
    BOS,
    MODEL,
    USER,
    Script,
    events_of,
    make_model,
    serving,
    text_of,
    text_tokenizer,
    tokens_of,
)

from baton.core.sampling import FinishReason
from baton.gateway.access.cache_salt import CacheSalts
from baton.gateway.text.model_files import SamplingDefaults

FOX = "the quick brown fox"


async def test_a_completion_is_answered_as_openai_does() -> None:
    async with serving(Script(tokens=tokens_of(FOX), ends_with_eos=True, num_cached=3)) as gateway:
        response = await gateway.complete(prompt="Hello", max_tokens=50)

    answer = response.json()
    num_output = len(tokens_of(FOX)) + 1
    num_prompt = len(tokens_of("Hello")) + 1
    assert response.status_code == 200
    assert answer["id"].startswith("cmpl-")
    assert answer["object"] == "text_completion"
    assert answer["model"] == MODEL
    assert answer["choices"] == [
        {"index": 0, "text": FOX, "logprobs": None, "finish_reason": "stop"}
    ]
    assert answer["usage"] == {
        "prompt_tokens": num_prompt,
        "completion_tokens": num_output,
        "total_tokens": num_prompt + num_output,
        "prompt_tokens_details": {"cached_tokens": 3, "cache_write_tokens": 0},
    }
    assert "baton" not in answer


async def test_a_prompt_may_be_token_ids() -> None:
    tokens = tokens_of("Hello world")
    async with serving() as gateway:
        answer = (await gateway.complete(prompt=tokens, return_token_ids=True)).json()

    assert gateway.dispatcher.generations[0].prompt == tuple(tokens)
    assert answer["choices"][0]["text"] == "Hello world"
    assert answer["choices"][0]["prompt_token_ids"] == tokens
    assert answer["choices"][0]["token_ids"] == tokens


async def test_special_tokens_can_be_left_away() -> None:
    async with serving() as gateway:
        await gateway.complete(prompt="Hello")
        await gateway.complete(prompt="Hello", add_special_tokens=False)

    with_bos, without = (generation.prompt for generation in gateway.dispatcher.generations)
    assert with_bos[1:] == without == tuple(tokens_of("Hello"))


async def test_long_prompts_are_tokenised_alike() -> None:
    text = "the quick fox " * 3000
    async with serving() as gateway:
        gateway.dispatcher.max_model_len = 10**6
        await gateway.complete(prompt=text, add_special_tokens=False)

    assert gateway.dispatcher.generations[0].prompt == tuple(tokens_of(text))


async def test_options_reach_the_dispatcher() -> None:
    async with serving() as gateway:
        await gateway.complete(
            prompt="Hello", temperature=0.25, top_k=5, top_p=0.5, min_p=0.1, seed=-2, max_tokens=7,
            repetition_penalty=1.5, presence_penalty=1, frequency_penalty=-1, min_tokens=2,
            stop_token_ids=[9], ignore_eos=True, logprobs=2, cache_salt="tenant", user="me",
        )  # fmt: skip

    (generation,) = gateway.dispatcher.generations
    sampling = generation.sampling
    assert (sampling.temperature, sampling.top_k, sampling.top_p) == (0.25, 5, 0.5)
    assert (sampling.min_p, sampling.repetition_penalty) == (0.1, 1.5)
    assert (sampling.presence_penalty, sampling.frequency_penalty) == (1, -1)
    assert (sampling.min_tokens, sampling.max_tokens) == (2, 7)
    assert (sampling.stop_token_ids, sampling.ignore_eos) == ((9,), True)
    assert (sampling.num_logprobs, sampling.seed) == (2, 2**64 - 2)
    assert generation.salt == CacheSalts("").salt("", "tenant")
    assert generation.time_left_s is not None and 0 < generation.time_left_s <= 600


async def test_the_models_own_defaults_apply() -> None:
    model = make_model(defaults=SamplingDefaults(temperature=0.3, top_k=4))
    async with serving(model=model) as gateway:
        await gateway.complete(prompt="Hello")

    sampling = gateway.dispatcher.generations[0].sampling
    assert (sampling.temperature, sampling.top_k, sampling.max_tokens) == (0.3, 4, 16)


async def test_a_stream_has_the_same_text_as_the_whole() -> None:
    async with serving(Script(tokens=tokens_of(FOX + " 日本"))) as gateway:
        whole = (await gateway.complete(prompt="Hello", max_tokens=99 - 10)).json()
        response = await gateway.complete(prompt="Hello", max_tokens=99 - 10, stream=True)

    events = events_of(response)
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.text.endswith("data: [DONE]\n\n")
    assert "".join(e["choices"][0]["text"] for e in events) == whole["choices"][0]["text"]
    assert [e["choices"][0]["finish_reason"] for e in events][-2:] == [None, "length"]
    assert all("usage" not in event for event in events)


async def test_usage_and_receipt_come_in_a_chunk_of_their_own() -> None:
    async with serving(Script(tokens=tokens_of(FOX), num_cached=1)) as gateway:
        response = await gateway.complete(
            prompt="Hello", stream=True, stream_options={"include_usage": True}, receipt=True
        )

    *chunks, last = events_of(response)
    assert all(chunk["usage"] is None for chunk in chunks)
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == len(tokens_of(FOX))
    assert last["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 1,
        "cache_write_tokens": 0,
    }
    assert last["baton"]["decode_replica"] == "d0"


async def test_usage_so_far_comes_with_every_chunk_if_asked_for() -> None:
    tokens = tokens_of(FOX)
    options = {"include_usage": True, "continuous_usage_stats": True}
    async with serving(Script(tokens=tokens)) as gateway:
        response = await gateway.complete(
            prompt="Hello", max_tokens=50, stream=True, stream_options=options
        )

    *chunks, last = events_of(response)
    counts = [chunk["usage"]["completion_tokens"] for chunk in chunks]
    assert counts == sorted(counts) and counts[0] >= 1
    assert counts[-1] == last["usage"]["completion_tokens"] == len(tokens)


async def test_a_receipt_can_be_asked_for_by_header() -> None:
    async with serving() as gateway:
        response = await gateway.http.post(
            "/v1/completions", json={"prompt": "Hello"}, headers={"X-Baton-Receipt": "1"}
        )

    receipt = response.json()["baton"]
    assert receipt["placement"] == "least work"
    assert receipt["notes"] == ["stopped"], "it is taken after the generation has ended"


async def test_token_ids_stream_with_every_chunk() -> None:
    tokens = tokens_of(FOX)
    async with serving(Script(tokens=tokens)) as gateway:
        response = await gateway.complete(
            prompt="Hello", stream=True, return_token_ids=True, max_tokens=50
        )

    choices = [event["choices"][0] for event in events_of(response)]
    assert [token for choice in choices for token in choice["token_ids"]] == tokens
    assert choices[0]["prompt_token_ids"][1:] == tokens_of("Hello")
    assert all("prompt_token_ids" not in choice for choice in choices[1:])


async def test_updates_become_one_event_each() -> None:
    async with serving(Script(tokens=tokens_of(FOX), num_per_update=4)) as gateway:
        response = await gateway.complete(prompt="Hello", stream=True, max_tokens=50)

    assert len(events_of(response)) == -(-len(tokens_of(FOX)) // 4)


async def test_a_stop_string_ends_text_and_generation() -> None:
    tokens = tokens_of(FOX + " jumps over")
    async with serving(Script(tokens=tokens)) as gateway:
        answer = (await gateway.complete(prompt="x", stop=["own f", "zzz"], max_tokens=50)).json()

    (num_delivered,) = gateway.dispatcher.stops
    assert answer["choices"][0]["text"] == "the quick br"
    assert answer["choices"][0]["finish_reason"] == FinishReason.STOP
    assert answer["usage"]["completion_tokens"] == num_delivered < len(tokens)
    assert "own f" in text_of(tokens[:num_delivered])


async def test_a_stop_string_may_be_given_alone() -> None:
    async with serving(Script(tokens=tokens_of(FOX))) as gateway:
        answer = (await gateway.complete(prompt="x", stop="quick", max_tokens=50)).json()

    assert answer["choices"][0]["text"] == "the "


async def test_completion_logprobs_are_parallel_lists() -> None:
    tokens = tokens_of("fox €")
    async with serving(Script(tokens=tokens)) as gateway:
        answer = (await gateway.complete(prompt="x", logprobs=2)).json()

    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"] == [-0.5] * len(tokens)
    assert {len(values) for values in logprobs.values()} == {len(tokens)}
    assert logprobs["tokens"][:2] == ["fo", "x"]
    assert logprobs["tokens"][-1].startswith("bytes:\\x")
    assert logprobs["text_offset"][:3] == [0, 2, 3]
    assert sorted(logprobs["top_logprobs"][0].values()) == [-2.0, -1.0, -0.5]


async def test_a_chat_is_rendered_and_answered() -> None:
    async with serving(Script(tokens=tokens_of(FOX), ends_with_eos=True)) as gateway:
        answer = (await gateway.chat("Hello")).json()

    prompt = text_tokenizer().encode(f"{BOS}{USER}Hello{ASSISTANT}", add_special_tokens=False)
    (generation,) = gateway.dispatcher.generations
    assert generation.prompt == prompt
    assert generation.sampling.max_tokens == 100 - len(prompt)
    assert answer["id"].startswith("chatcmpl-")
    assert answer["object"] == "chat.completion"
    assert answer["choices"] == [
        {
            "index": 0,
            "message": {"role": "assistant", "content": FOX},
            "logprobs": None,
            "finish_reason": "stop",
        }
    ]


async def test_parts_of_a_message_are_joined_and_developers_are_systems() -> None:
    parts = [{"type": "text", "text": "Hello"}, {"type": "text", "text": "world"}]
    messages = [{"role": "developer", "content": "brief"}, {"role": "user", "content": parts}]
    async with serving() as gateway:
        await gateway.chat(messages=messages)

    prompt = f"{BOS}<|system|>brief{USER}Hello\nworld{ASSISTANT}"
    expected = text_tokenizer().encode(prompt, add_special_tokens=False)
    assert gateway.dispatcher.generations[0].prompt == expected


async def test_a_chat_stream_names_the_role_once() -> None:
    async with serving(Script(tokens=tokens_of(FOX), ends_with_eos=True)) as gateway:
        response = await gateway.chat(stream=True, stream_options={"include_usage": True})

    *chunks, last = events_of(response)
    deltas = [chunk["choices"][0]["delta"] for chunk in chunks]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert [delta.get("role") for delta in deltas] == ["assistant"] + [None] * (len(deltas) - 1)
    assert "".join(delta.get("content", "") for delta in deltas) == FOX
    assert deltas[-1] == {}
    assert chunks[-1]["choices"][0]["finish_reason"] == "stop"
    assert last["usage"]["completion_tokens"] == len(tokens_of(FOX)) + 1


async def test_chat_logprobs_carry_bytes() -> None:
    tokens = tokens_of("€")
    async with serving(Script(tokens=tokens)) as gateway:
        answer = (await gateway.chat(logprobs=True, top_logprobs=1, max_tokens=9)).json()

    content = answer["choices"][0]["logprobs"]["content"]
    assert bytes(byte for entry in content for byte in entry["bytes"]).decode() == "€"
    assert [len(entry["top_logprobs"]) for entry in content] == [1] * len(tokens)
    assert content[0]["logprob"] == -0.5


async def test_max_completion_tokens_comes_before_max_tokens() -> None:
    async with serving() as gateway:
        await gateway.chat(max_tokens=9, max_completion_tokens=3)

    assert gateway.dispatcher.generations[0].sampling.max_tokens == 3


async def test_the_request_id_is_the_clients_own() -> None:
    headers = {"X-Request-Id": "trace-1"}
    async with serving() as gateway:
        responses = [
            await gateway.http.post("/v1/completions", json={"prompt": "x"}, headers=headers)
            for _ in range(2)
        ]

    assert {response.headers["x-request-id"] for response in responses} == {"trace-1"}
    assert {response.json()["id"] for response in responses} == {"cmpl-trace-1"}
    internal = [generation.request_id for generation in gateway.dispatcher.generations]
    assert len(set(internal)) == 2
    assert all(request_id.startswith("trace-1") for request_id in internal)


async def test_an_unnamed_model_is_the_only_one() -> None:
    async with serving() as gateway:
        response = await gateway.http.post("/v1/completions", json={"prompt": "x"})

    assert response.json()["model"] == MODEL


async def test_models_are_listed() -> None:
    async with serving() as gateway:
        listed = (await gateway.http.get("/v1/models")).json()
        one = (await gateway.http.get(f"/v1/models/{MODEL}")).json()

    assert listed == {"object": "list", "data": [one]}
    assert one["id"] == MODEL
    assert one["max_model_len"] == 100


async def test_a_model_is_asked_for_by_any_of_its_names_and_answers_by_its_own() -> None:
    model = replace(make_model(), aliases=("gpt-4o", "org/other"))
    async with serving(model=model) as gateway:
        listed = (await gateway.http.get("/v1/models")).json()["data"]
        one = (await gateway.http.get("/v1/models/org/other")).json()
        answered = await gateway.complete(prompt="x", model="gpt-4o")
        unknown = await gateway.complete(prompt="x", model="gpt-5")

    assert [each["id"] for each in listed] == [MODEL, "gpt-4o", "org/other"]
    assert one["id"] == "org/other" and one["root"] == MODEL
    assert answered.json()["model"] == MODEL
    assert unknown.status_code == 404 and "`gpt-4o`" in unknown.json()["error"]["message"]
