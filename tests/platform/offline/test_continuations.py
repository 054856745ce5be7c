"""Many prompts at once, read in order."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import pytest
from tests.gateway.scripted import Script, ScriptedDispatcher, make_model, text_of, tokens_of

from baton.core.errors import InvalidRequest
from baton.gateway.access.api_keys import ANYBODY
from baton.gateway.access.config import GatewayConfig
from baton.gateway.requests.completion_request import CompletionRequest, Prompt
from baton.gateway.requests.gateway import Gateway
from baton.gateway.requests.generations.choices import Completion
from baton.gateway.requests.options import SamplingOptions
from baton.platform.offline.continuations import Begin, continuations

TEXTS = ["the quick brown", "fox jumps over", "the lazy dog"]


def make_gateway(dispatcher: ScriptedDispatcher) -> Gateway:
    return Gateway(model=make_model(), dispatcher=dispatcher, config=GatewayConfig())


def begins(gateway: Gateway, texts: list[str]) -> list[Begin]:
    async def begin(text: str) -> Completion:
        prompt = Prompt(tokens=tuple(tokens_of(text)), field="prompt")
        options = SamplingOptions(max_tokens=20)
        return gateway.complete(
            CompletionRequest(request_id=text, prompts=(prompt,), options=options, caller=ANYBODY)
        )

    makers: list[Callable[[], Awaitable[Completion]]] = [partial(begin, text) for text in texts]
    return makers


async def test_all_are_drawn_at_once_and_read_in_order() -> None:
    dispatcher = ScriptedDispatcher()

    async with continuations(begins(make_gateway(dispatcher), TEXTS), max_open=3) as found:
        texts = ["".join([delta.text async for delta in one]) for one in found]
        usages = [one.usage.output_tokens for one in found]

    assert texts == TEXTS
    assert usages == [len(tokens_of(text)) for text in TEXTS]
    assert sorted(dispatcher.stops) == sorted(usages)


async def test_no_more_run_than_there_is_room_for_and_leaving_stops_those() -> None:
    dispatcher = ScriptedDispatcher(script=Script(stalls_after=1))

    async with continuations(begins(make_gateway(dispatcher), TEXTS), max_open=2) as found:
        for one in found[:2]:
            await anext(aiter(one))
        assert len(dispatcher.generations) == 2

    assert dispatcher.stops == [1, 1]


async def test_one_that_is_refused_leaves_the_others_alone() -> None:
    gateway = make_gateway(ScriptedDispatcher())

    async with continuations(begins(gateway, [TEXTS[0], "", TEXTS[2]]), max_open=1) as found:
        first, refused, last = found
        assert [delta.tokens async for delta in first]
        with pytest.raises(InvalidRequest, match="prompt is empty"):
            await anext(aiter(refused))
        assert text_of([t async for delta in last for t in delta.tokens]) == TEXTS[2]
