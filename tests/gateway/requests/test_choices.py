"""Several prompts, several choices of each: one request, one answer."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import aclosing
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.gateway.scripted import (
    Script,
    ScriptedDispatcher,
    error_of,
    events_of,
    make_model,
    serving,
    soon,
    text_of,
    tokens_of,
)

from baton.core.errors import Unavailable
from baton.gateway.access.api_keys import ANYBODY
from baton.gateway.access.config import GatewayConfig
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.choices import Completion
from baton.gateway.requests.options import SamplingOptions

HELLO, FOX, DOG = tokens_of("Hello"), tokens_of("the fox"), tokens_of("lazy dog")


def three_answers(**common: Any) -> ScriptedDispatcher:
    """Choice 0 says Hello, choice 1 of the fox, choice 2 of the dog, each more likely."""
    scripts = [
        Script(tokens=tokens, logprob=-3.0 + number, **common)
        for number, tokens in enumerate((HELLO, FOX, DOG))
    ]
    return ScriptedDispatcher(scripts[0], script_by_choice=dict(enumerate(scripts)))


async def test_n_choices_of_one_prompt_come_in_order() -> None:
    async with serving(dispatcher=three_answers(num_cached=1)) as gateway:
        answer = (await gateway.complete(prompt="x", n=3, seed=7, receipt=True)).json()

    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert [choice["text"] for choice in answer["choices"]] == ["Hello", "the fox", "lazy dog"]
    assert answer["usage"]["prompt_tokens"] == 2, "the prompt counts once"
    assert answer["usage"]["completion_tokens"] == len(HELLO) + len(FOX) + len(DOG)
    assert answer["usage"]["prompt_tokens_details"] == {
        "cached_tokens": 1,
        "cache_write_tokens": 0,
    }
    assert [receipt["decode_replica"] for receipt in answer["baton"]] == ["d0"] * 3
    generations = gateway.dispatcher.generations
    assert [generation.sampling.choice for generation in generations] == [0, 1, 2]
    assert {generation.sampling.seed for generation in generations} == {7}
    assert len({generation.request_id for generation in generations}) == 3
    assert len(gateway.dispatcher.stops) == 3


@pytest.mark.parametrize(("num_tokens", "num_started"), [(0, 1), (1, 1), (2, 3)])
async def test_the_others_start_near_the_first_when_its_second_token_shows_the_prompt_cached(
    num_tokens: int, num_started: int
) -> None:
    dispatcher = three_answers()
    dispatcher.script_by_choice[0] = Script(tokens=FOX, stalls_after=num_tokens)
    async with serving(dispatcher=dispatcher) as gateway:
        task = asyncio.create_task(gateway.complete(prompt="x", n=3))
        while len(dispatcher.generations) < num_started or len(dispatcher.stops) < num_started - 1:
            await asyncio.sleep(0.001)
        task.cancel()
        while len(dispatcher.stops) < num_started:
            await soon(dispatcher.stopped)
            dispatcher.stopped.clear()

    first, *others = dispatcher.generations
    assert first.near is None
    assert [other.near for other in others] == [first.request_id] * (num_started - 1)


async def test_the_others_start_when_the_first_has_ended_with_one_token() -> None:
    async with serving(Script(tokens=HELLO[:1])) as gateway:
        answer = (await gateway.complete(prompt="x", n=3)).json()

    assert len(answer["choices"]) == len(gateway.dispatcher.generations) == 3


async def test_a_stream_tells_its_choices_apart() -> None:
    async with serving(dispatcher=three_answers()) as gateway:
        response = await gateway.complete(
            prompt="x", n=3, stream=True, stream_options={"include_usage": True}, receipt=True
        )

    *chunks, last = events_of(response)
    texts = ["", "", ""]
    for chunk in chunks:
        (choice,) = chunk["choices"]
        texts[choice["index"]] += choice["text"]
    assert texts == ["Hello", "the fox", "lazy dog"]
    assert last["usage"]["completion_tokens"] == len(HELLO) + len(FOX) + len(DOG)
    assert len(last["baton"]) == 3
    assert response.text.endswith("data: [DONE]\n\n")


async def test_several_prompts_are_answered_in_order() -> None:
    async with serving() as gateway:
        texts = (await gateway.complete(prompt=["Hello", "fox"], add_special_tokens=False)).json()
        tokens = (await gateway.complete(prompt=[HELLO, DOG], n=2)).json()

    assert [choice["text"] for choice in texts["choices"]] == ["Hello", "fox"]
    assert [choice["text"] for choice in tokens["choices"]] == [
        "Hello", "Hello", "lazy dog", "lazy dog",
    ]  # fmt: skip
    assert tokens["usage"]["prompt_tokens"] == len(HELLO) + len(DOG)


async def test_equal_prompts_without_a_seed_draw_different_numbers() -> None:
    async with serving() as gateway:
        await gateway.complete(prompt=["Hello", "Hello"])

    seeds = {generation.sampling.seed for generation in gateway.dispatcher.generations}
    assert len(seeds) == 2


async def test_best_of_gives_the_most_probable_and_counts_all() -> None:
    async with serving(dispatcher=three_answers()) as gateway:
        answer = (await gateway.complete(prompt="x", n=2, best_of=3)).json()

    assert [choice["text"] for choice in answer["choices"]] == ["lazy dog", "the fox"]
    assert [choice["logprobs"] for choice in answer["choices"]] == [None, None]
    assert answer["usage"]["completion_tokens"] == len(HELLO) + len(FOX) + len(DOG)


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"n": 2, "best_of": 1}, "best_of"),
        ({"best_of": 2, "stream": True}, "best_of"),
        ({"n": 0}, "n"),
        ({"n": 5}, "n"),
        ({"best_of": 5}, "best_of"),
        ({"n": 3, "prompt": ["a", "b"]}, "n"),
        ({"prompt": ["a"] * 5}, "prompt"),
        ({"prompt": ["a", [1]]}, "prompt[1]"),
        ({"prompt": [[1], "a"]}, "prompt[1]"),
        ({"prompt": ["a", ""]}, "prompt[1]"),
        ({"prompt": [[1], [-1]]}, "prompt[1][0]"),
        ({"prompt": [[1], [1] * 100]}, "prompt[1]"),
    ],
)
async def test_too_many_or_mixed_are_refused(body: dict[str, Any], field: str) -> None:
    async with serving(max_choices=4) as gateway:
        response = await gateway.complete(**{"prompt": "x", **body})

    assert response.status_code == 400
    assert error_of(response)["param"] == field
    assert gateway.dispatcher.generations == []


async def test_one_choice_that_fails_ends_all() -> None:
    dispatcher = ScriptedDispatcher(Script(tokens=FOX, stalls_after=2))
    dispatcher.script_by_choice[1] = Script(tokens=FOX, error=Unavailable("lost"), num_before=1)
    async with serving(dispatcher=dispatcher) as gateway:
        whole = await gateway.complete(prompt="x", n=3)
        streamed = await gateway.complete(prompt="x", n=3, stream=True)

    assert whole.status_code == 503
    assert events_of(streamed)[-1]["error"]["code"] == "unavailable"
    assert len(dispatcher.stops) == len(dispatcher.generations)


async def test_when_the_first_choice_fails_the_others_never_start() -> None:
    dispatcher = ScriptedDispatcher(Script(start_error=Unavailable("lost")))
    async with serving(dispatcher=dispatcher) as gateway:
        response = await gateway.complete(prompt="x", n=3, stream=True)

    assert response.status_code == 503
    assert len(dispatcher.generations) == 1


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_stops_all_choices(is_streamed: bool) -> None:
    dispatcher = ScriptedDispatcher(Script(tokens=FOX, stalls_after=2))
    async with serving(dispatcher=dispatcher) as gateway:
        task = asyncio.create_task(gateway.complete(prompt="x", n=3, stream=is_streamed))
        while len(dispatcher.generations) < 3:
            await asyncio.sleep(0.001)
        task.cancel()
        while len(dispatcher.stops) < 3:
            await soon(dispatcher.stopped)
            dispatcher.stopped.clear()
        text = gateway.server.metrics_page()

    assert 'baton_gateway_open_requests{model="org/tiny"} 0' in text


async def test_chats_have_choices_as_well() -> None:
    async with serving(dispatcher=three_answers()) as gateway:
        whole = (await gateway.chat(n=3)).json()
        response = await gateway.chat(n=3, stream=True)

    texts = ["", "", ""]
    roles = []
    for event in events_of(response):
        (choice,) = event["choices"]
        texts[choice["index"]] += choice["delta"].get("content", "")
        roles.append((choice["index"], choice["delta"].get("role")))
    assert [choice["message"]["content"] for choice in whole["choices"]] == texts
    assert texts == [text_of(HELLO), text_of(FOX), text_of(DOG)]
    assert [index for index, role in roles if role == "assistant"] == [0, 1, 2]


def completion_of(scripts: Sequence[Script], num_prompts: int) -> tuple[Completion, Gateway]:
    """One choice of each prompt for each script, without a server."""
    dispatcher = ScriptedDispatcher(script_by_choice=dict(enumerate(scripts)))
    gateway = Gateway(model=make_model(), dispatcher=dispatcher, config=GatewayConfig())
    order = CompletionRequest(
        request_id="request",
        prompts=tuple(Prompt(tokens=(5, 6), field="prompt") for _ in range(num_prompts)),
        options=SamplingOptions(n=len(scripts), max_tokens=90),
        caller=ANYBODY,
    )
    return gateway.complete(order), gateway


outputs = st.builds(
    Script,
    tokens=st.lists(st.integers(4, 300), min_size=1, max_size=12),
    num_per_update=st.integers(1, 5),
    ends_with_eos=st.booleans(),
)


@given(st.lists(outputs, min_size=1, max_size=4), st.integers(1, 3))
def test_what_is_merged_is_what_each_choice_would_say_alone(
    scripts: list[Script], num_prompts: int
) -> None:
    async def together() -> list[str]:
        completion, _ = completion_of(scripts, num_prompts)
        texts = [""] * completion.num_choices
        async with aclosing(completion.deltas()) as parts:
            async for part in parts:
                texts[part.index] += part.delta.text
        return texts

    async def alone(script: Script) -> str:
        completion, _ = completion_of([script], 1)
        (choice,) = await completion.whole()
        return choice.delta.text

    async def both() -> None:
        expected = [await alone(script) for script in scripts]
        assert await together() == expected * num_prompts

    asyncio.run(both())


@given(st.lists(outputs, min_size=1, max_size=4), st.integers(0, 10))
def test_whoever_stops_reading_stops_all_that_has_started(scripts: list[Script], num: int) -> None:
    async def read_some() -> None:
        completion, gateway = completion_of(scripts, 2)
        async with aclosing(completion.deltas()) as parts:
            for _ in range(num):
                if await anext(parts, None) is None:
                    break
        dispatcher = gateway.dispatcher
        assert isinstance(dispatcher, ScriptedDispatcher)
        assert len(dispatcher.stops) == len(dispatcher.generations)
        assert gateway.metrics.num_open == 0

    asyncio.run(read_some())
