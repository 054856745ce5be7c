"""Prompts that are given back: as text, and with their logprobs."""

from __future__ import annotations

from typing import Any

import pytest
from tests.gateway.scripted import Script, error_of, events_of, serving, text_of, tokens_of

HELLO, FOX = tokens_of("Hello world"), tokens_of("the fox")


async def test_the_prompt_comes_before_the_output() -> None:
    async with serving(Script(tokens=FOX)) as gateway:
        of_text = (await gateway.complete(prompt="Hello world", echo=True)).json()
        of_tokens = (await gateway.complete(prompt=HELLO, echo=True)).json()
        several = (await gateway.complete(prompt=["a", "b"], echo=True, n=2)).json()

    assert of_text["choices"][0]["text"] == "Hello worldthe fox"
    assert of_tokens["choices"][0]["text"] == "Hello worldthe fox"
    assert of_tokens["usage"]["completion_tokens"] == len(FOX)
    assert [choice["text"][0] for choice in several["choices"]] == ["a", "a", "b", "b"]


async def test_logprobs_cover_the_prompt_but_for_its_first_token() -> None:
    async with serving(Script(tokens=FOX)) as gateway:
        answer = (await gateway.complete(prompt=HELLO, echo=True, logprobs=1)).json()

    logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == [text_of([token]) for token in HELLO + FOX]
    assert logprobs["token_logprobs"] == [None] + [-1.5] * (len(HELLO) - 1) + [-0.5] * len(FOX)
    assert logprobs["top_logprobs"][0] is None
    assert all(len(entry) in (1, 2) for entry in logprobs["top_logprobs"][1:])
    text = answer["choices"][0]["text"]
    for token, start in zip(logprobs["tokens"], logprobs["text_offset"], strict=True):
        assert text[start:].startswith(token)
    assert gateway.dispatcher.generations[0].sampling.num_prompt_logprobs == 1


async def test_only_the_first_choice_computes_the_prompts_logprobs_and_all_show_them() -> None:
    async with serving(Script(tokens=FOX)) as gateway:
        answer = (await gateway.complete(prompt=HELLO, echo=True, logprobs=0, n=2)).json()

    first, second = gateway.dispatcher.generations
    assert (first.sampling.num_prompt_logprobs, second.sampling.num_prompt_logprobs) == (0, None)
    assert answer["choices"][0]["logprobs"] == answer["choices"][1]["logprobs"]


async def test_a_stream_echoes_once_for_each_choice() -> None:
    async with serving(Script(tokens=FOX)) as gateway:
        response = await gateway.complete(prompt=HELLO, echo=True, logprobs=1, n=2, stream=True)
        whole = (await gateway.complete(prompt=HELLO, echo=True, logprobs=1, n=2)).json()

    texts, offsets = ["", ""], [list[int](), list[int]()]
    for event in events_of(response):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["text"]
        offsets[choice["index"]] += choice["logprobs"]["text_offset"]
    assert texts == [choice["text"] for choice in whole["choices"]]
    assert offsets == [choice["logprobs"]["text_offset"] for choice in whole["choices"]]


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_no_output_at_all_gives_the_prompt_alone(is_streamed: bool) -> None:
    body = {"prompt": HELLO, "echo": True, "logprobs": 1, "max_tokens": 0, "stream": is_streamed}
    async with serving(Script(tokens=FOX)) as gateway:
        response = await gateway.complete(**body, return_token_ids=True)

    (answer,) = events_of(response) if is_streamed else [response.json()]
    (choice,) = answer["choices"]
    assert choice["text"] == "Hello world"
    assert len(choice["logprobs"]["tokens"]) == len(HELLO)
    assert (choice["token_ids"], choice["finish_reason"]) == ([], "length")
    if not is_streamed:
        assert answer["usage"]["completion_tokens"] == 0
    assert gateway.dispatcher.generations[0].sampling.max_tokens == 1


async def test_without_echo_there_must_be_output() -> None:
    async with serving() as gateway:
        response = await gateway.complete(prompt="x", max_tokens=0)

    assert error_of(response)["param"] == "max_tokens"


async def test_prompt_logprobs_are_told_as_vllm_does() -> None:
    async with serving(Script(tokens=FOX)) as gateway:
        answer = (await gateway.complete(prompt=[20, 30, 21], prompt_logprobs=2)).json()
        chat = (await gateway.chat(prompt_logprobs=0)).json()
        without = (await gateway.complete(prompt=[20, 30])).json()

    entries: list[dict[str, Any]] = answer["choices"][0]["prompt_logprobs"]
    assert entries[0] is None
    assert set(entries[1]) == {"20", "21", "30"}, "the token itself is not among the alternatives"
    assert entries[1]["30"] == {"logprob": -1.5, "rank": None, "decoded_token": text_of([30])}
    assert set(entries[2]) == {"20", "21"}
    assert entries[2]["21"]["rank"] == 2
    assert chat["prompt_logprobs"][0] is None
    assert len(chat["prompt_logprobs"]) == chat["usage"]["prompt_tokens"]
    assert "prompt_logprobs" not in without["choices"][0]


async def test_a_suffix_is_refused_with_words() -> None:
    async with serving() as gateway:
        error = error_of(await gateway.complete(prompt="x", suffix="end"))

    assert error["param"] == "suffix"
    assert "suffix is not supported" in error["message"]
