"""Streams that say how far their prompt is, over both faces and as values."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Callable
from typing import Any

import pytest
from tests.gateway.scripted import Script, serving, tokens_of

from baton.client.async_client import AsyncBatonClient
from baton.core.errors import Overloaded
from baton.gateway.requests.generations import prompt_progress
from baton.gateway.requests.generations.prompt_progress import PromptProgress, with_prompt_progress

PROGRESS = PromptProgress(state="queued", position=1, total=9, eta_ms=100.0)
HELLO = {"messages": [{"role": "user", "content": "Hello"}]}


async def test_what_is_told_ends_with_the_first_delta() -> None:
    go_on = asyncio.Event()

    async def deltas() -> AsyncGenerator[str]:
        await go_on.wait()
        for delta in ("a", "b"):
            await asyncio.sleep(0.002)
            yield delta

    got: list[Any] = []
    async for part in with_prompt_progress(deltas(), lambda: PROGRESS, each_s=0.0005):
        got.append(part)
        go_on.set()

    assert got[-2:] == ["a", "b"]
    assert got[0].position == 1
    assert all(isinstance(part, PromptProgress) for part in got[:-2])


async def test_whoever_stops_listening_before_the_first_delta_stops_the_request() -> None:
    ended = asyncio.Event()

    async def deltas() -> AsyncGenerator[str]:
        try:
            await asyncio.Event().wait()
            yield "never"
        finally:
            ended.set()

    parts = with_prompt_progress(deltas(), lambda: PROGRESS, each_s=0.0005)
    await anext(parts)
    await parts.aclose()

    assert ended.is_set()


@pytest.fixture
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompt_progress, "EACH_S", 0.005)


@pytest.mark.usefixtures("often")
@pytest.mark.parametrize(
    ("path", "body"), [("/v1/completions", {"prompt": "Hello"}), ("/v1/chat/completions", HELLO)]
)
async def test_a_stream_tells_how_far_its_prompt_is(path: str, body: dict[str, Any]) -> None:
    starts = asyncio.Event()
    async with serving(Script(tokens=tokens_of("the fox"), starts=starts)) as gateway:
        chunks: list[dict[str, Any]] = []
        asked = {**body, "stream": True, "return_progress": True}
        async with gateway.http.stream("POST", path, json=asked) as response:
            async for line in response.aiter_lines():
                if line.startswith("data: {"):
                    chunks.append(json.loads(line.removeprefix("data: ")))
                    starts.set()

    told = [chunk for chunk in chunks if "prompt_progress" in chunk]
    assert chunks[: len(told)] == told != []
    progress, (choice,) = told[0]["prompt_progress"], told[0]["choices"]
    assert (progress["state"], progress["position"], progress["processed"]) == ("queued", 3, 0)
    assert progress["time_ms"] > 0
    assert not choice.get("text") and choice["finish_reason"] is None
    assert choice.get("delta", {"content": None})["content"] is None


@pytest.mark.usefixtures("often")
async def test_a_request_that_is_refused_after_it_told_of_progress_ends_with_an_error_event() -> (
    None
):
    starts = asyncio.Event()
    script = Script(starts=starts, error=Overloaded("no more"))
    async with serving(script) as gateway:
        asked = {"prompt": "Hello", "stream": True, "return_progress": True}
        async with gateway.http.stream("POST", "/v1/completions", json=asked) as response:
            lines = []
            async for line in response.aiter_lines():
                lines.append(line)
                starts.set()

    assert response.status_code == 200
    assert '"overloaded"' in [line for line in lines if line][-1]


async def test_without_a_stream_there_is_nobody_to_tell() -> None:
    async with serving(Script()) as gateway:
        asked = {"prompt": "Hello", "return_progress": True}
        answer = await gateway.http.post("/v1/completions", json=asked)

    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "return_progress"


@pytest.mark.usefixtures("often")
async def test_the_sdk_hears_of_progress_and_its_results_are_as_ever() -> None:
    starts = asyncio.Event()
    async with (
        serving(Script(tokens=tokens_of("the fox"), starts=starts)) as gateway,
        AsyncBatonClient(gateway.grpc_target) as client,
    ):
        open_each: list[Callable[[], Any]] = [  # a stream begins when it is made
            lambda: client.stream("Hello", return_progress=True),
            lambda: client.stream_chat(HELLO["messages"], return_progress=True),
        ]
        for open_one in open_each:
            starts.clear()
            async with open_one() as stream:
                first = await anext(stream)
                starts.set()
                result = await stream.result()
            assert first.prompt_progress is not None
            assert (first.prompt_progress.position, first.prompt_progress.eta_ms) == (3, 1500.0)
            assert result.text == "the fox"
