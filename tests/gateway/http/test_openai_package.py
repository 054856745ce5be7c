"""The official `openai` package against a live gateway."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest
from tests.gateway.scripted import (
    MODEL,
    Script,
    ScriptedDispatcher,
    Serving,
    eos_token,
    serving,
    soon,
    text_of,
    tokens_of,
)

from baton.core.errors import Overloaded, Unavailable

FOX = "the quick brown fox — 日本 🦊"


def openai_of(gateway: Serving, api_key: str = "none") -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key=api_key, max_retries=0)


async def test_completions() -> None:
    async with serving(Script(tokens=tokens_of(FOX), ends_with_eos=True)) as gateway:
        completion = await openai_of(gateway).completions.create(
            model=MODEL, prompt="Hello", max_tokens=80
        )

    assert completion.choices[0].text == FOX
    assert completion.choices[0].finish_reason == "stop"
    assert completion.usage is not None
    assert completion.usage.completion_tokens == len(tokens_of(FOX)) + 1


async def test_streamed_completions_with_usage() -> None:
    async with serving(Script(tokens=tokens_of(FOX), num_cached=2)) as gateway:
        stream = await openai_of(gateway).completions.create(
            model=MODEL,
            prompt="Hello",
            max_tokens=80,
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [chunk async for chunk in stream]

    assert "".join(chunk.choices[0].text for chunk in chunks[:-1]) == FOX
    assert chunks[-2].choices[0].finish_reason == "length"
    usage = chunks[-1].usage
    assert usage is not None and usage.prompt_tokens_details is not None
    assert usage.completion_tokens == len(tokens_of(FOX))
    assert usage.prompt_tokens_details.cached_tokens == 2


async def test_completion_logprobs() -> None:
    tokens = tokens_of("the fox")
    async with serving(Script(tokens=tokens)) as gateway:
        completion = await openai_of(gateway).completions.create(
            model=MODEL, prompt="Hello", logprobs=3
        )

    logprobs = completion.choices[0].logprobs
    assert logprobs is not None
    assert logprobs.tokens == [text_of([token]) for token in tokens]
    assert logprobs.top_logprobs is not None and len(logprobs.top_logprobs[0]) == 4


async def test_several_prompts_and_choices() -> None:
    async with serving() as gateway:
        completion = await openai_of(gateway).completions.create(
            model=MODEL, prompt=[tokens_of("Hello"), tokens_of("fox")], n=2, echo=True
        )
        stream = await openai_of(gateway).chat.completions.create(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], n=3, stream=True
        )
        indices = {chunk.choices[0].index async for chunk in stream}

    assert [choice.index for choice in completion.choices] == [0, 1, 2, 3]
    assert [choice.text for choice in completion.choices] == ["HelloHello"] * 2 + ["foxfox"] * 2
    assert indices == {0, 1, 2}


async def test_its_streams_put_choices_together_whichever_comes_first() -> None:
    texts, may_start = ("the fox", "jumps over", "lazy dog"), asyncio.Event()
    scripted = ScriptedDispatcher(
        Script(tokens=tokens_of(texts[0]), ends_with_eos=True),
        script_by_choice={
            1: Script(tokens=tokens_of(texts[1]), ends_with_eos=True, starts=may_start),
            2: Script(tokens=tokens_of(texts[2]), ends_with_eos=True),
        },
    )
    async with serving(dispatcher=scripted) as gateway:
        asked = openai_of(gateway).chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": "hi"}], n=3, logprobs=True
        )
        async with asked as stream:
            async for event in stream:
                if event.type == "content.delta" and event.snapshot in texts[2]:
                    may_start.set()
            completion = await stream.get_final_completion()

    assert [choice.index for choice in completion.choices] == [0, 1, 2]
    assert tuple(choice.message.content for choice in completion.choices) == texts
    for choice, text in zip(completion.choices, texts, strict=True):
        assert choice.logprobs is not None and choice.logprobs.content is not None
        assert [one.token for one in choice.logprobs.content] == [
            text_of([token]) for token in (*tokens_of(text), eos_token())
        ]


async def test_embeddings_in_both_encodings() -> None:
    async with serving() as gateway:
        client = openai_of(gateway)
        packed = await client.embeddings.create(model=MODEL, input=["Hello", "fox"])
        plain = await client.embeddings.create(
            model=MODEL, input="Hello", encoding_format="float", dimensions=2
        )

    assert [entry.index for entry in packed.data] == [0, 1]
    assert sum(value**2 for value in packed.data[1].embedding) == pytest.approx(1)
    assert plain.data[0].embedding == pytest.approx([0.6, 0.8])
    assert packed.usage.prompt_tokens == packed.usage.total_tokens > 0


async def test_the_blocking_client() -> None:
    def ask(url: str) -> tuple[str, str, list[float]]:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            whole = client.completions.create(model=MODEL, prompt="Hello", best_of=2)
            stream = client.chat.completions.create(
                model=MODEL, messages=[{"role": "user", "content": "hi"}], stream=True
            )
            pieces = [chunk.choices[0].delta.content or "" for chunk in stream]
            vector = client.embeddings.create(model=MODEL, input="Hello").data[0].embedding
        return whole.choices[0].text, "".join(pieces), vector

    async with serving(Script(tokens=tokens_of("the fox"))) as gateway:
        completed, chatted, vector = await asyncio.to_thread(ask, gateway.url)

    assert completed == chatted == "the fox"
    assert len(vector) == 4


async def test_stop_and_seed() -> None:
    async with serving(Script(tokens=tokens_of(FOX))) as gateway:
        completion = await openai_of(gateway).completions.create(
            model=MODEL, prompt="Hello", stop=["brown"], seed=42, max_tokens=80
        )

    assert completion.choices[0].text == "the quick "
    assert completion.choices[0].finish_reason == "stop"
    assert gateway.dispatcher.generations[0].sampling.seed == 42


async def test_chats() -> None:
    async with serving(Script(tokens=tokens_of(FOX), ends_with_eos=True)) as gateway:
        chat = await openai_of(gateway).chat.completions.create(
            model=MODEL,
            messages=[
                {"role": "system", "content": "brief"},
                {"role": "user", "content": [{"type": "text", "text": "Hello"}]},
            ],
            max_completion_tokens=50,
        )

    assert chat.choices[0].message.content == FOX
    assert chat.choices[0].message.role == "assistant"
    assert chat.choices[0].finish_reason == "stop"


async def test_streamed_chats_with_logprobs() -> None:
    tokens = tokens_of(FOX)
    async with serving(Script(tokens=tokens, ends_with_eos=True)) as gateway:
        stream = await openai_of(gateway).chat.completions.create(
            model=MODEL,
            messages=[{"role": "user", "content": "Hello"}],
            logprobs=True,
            top_logprobs=2,
            max_tokens=50,
            stream=True,
        )
        choices = [chunk.choices[0] async for chunk in stream]

    assert "".join(choice.delta.content or "" for choice in choices) == FOX
    entries = [
        entry
        for choice in choices
        if choice.logprobs is not None
        for entry in choice.logprobs.content or ()
    ]
    assert len(entries) == len(tokens) + 1
    data = bytes(byte for entry in entries[:-1] for byte in entry.bytes or ())
    assert data.decode() == FOX
    assert {len(entry.top_logprobs) for entry in entries} == {2}


async def test_the_chat_helper_that_accumulates_a_stream() -> None:
    async with (
        serving(Script(tokens=tokens_of(FOX), ends_with_eos=True)) as gateway,
        openai_of(gateway).chat.completions.stream(
            model=MODEL, messages=[{"role": "user", "content": "Hello"}], max_tokens=50
        ) as stream,
    ):
        final = await stream.get_final_completion()

    assert final.choices[0].message.content == FOX


async def test_closing_a_stream_stops_the_generation() -> None:
    async with serving(Script(tokens=tokens_of(FOX), stalls_after=2)) as gateway:
        stream = await openai_of(gateway).completions.create(
            model=MODEL, prompt="Hello", stream=True
        )
        await anext(aiter(stream))
        await stream.close()
        await soon(gateway.dispatcher.stopped)


async def test_extras_go_through_extra_body() -> None:
    async with serving() as gateway:
        completion = await openai_of(gateway).completions.create(
            model=MODEL,
            prompt=[eos_token(), 7],
            extra_body={"top_k": 3, "return_token_ids": True, "receipt": True},
        )

    assert gateway.dispatcher.generations[0].sampling.top_k == 3
    extra = completion.model_extra
    assert extra is not None and extra["baton"]["decode_replica"] == "d0"
    choice = completion.choices[0].model_extra
    assert choice is not None and choice["token_ids"] == [eos_token(), 7]


async def test_models() -> None:
    async with serving() as gateway:
        client = openai_of(gateway)
        names = [model.id async for model in client.models.list()]
        one = await client.models.retrieve(MODEL)

    assert names == [MODEL] == [one.id]


async def test_errors_are_the_packages_own() -> None:
    async with serving(api_keys=frozenset({"key"})) as gateway:
        with pytest.raises(openai.AuthenticationError):
            await openai_of(gateway).models.list()
        client = openai_of(gateway, "key")
        with pytest.raises(openai.NotFoundError) as not_found:
            await client.completions.create(model="gpt-9", prompt="x")
        with pytest.raises(openai.BadRequestError) as bad:
            await client.completions.create(model=MODEL, prompt="x", n=200)
        with pytest.raises(openai.BadRequestError) as too_long:
            await client.completions.create(model=MODEL, prompt="x", max_tokens=1000)

    assert not_found.value.code == "model_not_found"
    assert bad.value.param == "n"
    assert too_long.value.code == "context_length_exceeded"


async def test_overload_and_failure_keep_their_advice() -> None:
    async with serving(Script(start_error=Overloaded("full", retry_after_s=7))) as gateway:
        with pytest.raises(openai.RateLimitError) as overloaded:
            await openai_of(gateway).completions.create(model=MODEL, prompt="x")
    async with serving(Script(start_error=Unavailable("away"))) as gateway:
        with pytest.raises(openai.InternalServerError) as unavailable:
            await openai_of(gateway).completions.create(model=MODEL, prompt="x")

    assert overloaded.value.response.headers["retry-after"] == "7"
    assert unavailable.value.status_code == httpx.codes.SERVICE_UNAVAILABLE


async def test_an_error_within_a_stream_is_raised() -> None:
    script = Script(tokens=tokens_of(FOX), error=Unavailable("lost"), num_before=3)
    async with serving(script) as gateway:
        stream = await openai_of(gateway).completions.create(model=MODEL, prompt="x", stream=True)
        with pytest.raises(openai.APIError, match="lost"):
            async for _ in stream:
                pass
