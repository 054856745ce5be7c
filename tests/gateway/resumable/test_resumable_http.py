"""Resumable streams over HTTP, against a whole gateway: ids, coming back, and going for good."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import openai
import pytest
from tests.gateway.scripted import MODEL, Script, Serving, error_of, serving, soon, tokens_of

from baton.core.errors import Overloaded, Unavailable

TEXT = "the quick brown fox"
COMPLETIONS, CHAT, RESPONSES = "/v1/completions", "/v1/chat/completions", "/v1/responses"
MESSAGES = "/v1/messages"
KEY = {"authorization": "Bearer alice"}

Event = tuple[str, str]
"""Its id and its data."""


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    if path == RESPONSES:
        return {"input": "Hello", "stream": True, **fields}
    prompt: dict[str, Any] = {"prompt": "Hello"}
    if path == MESSAGES:
        return {"messages": [{"role": "user", "content": "Hello"}], "stream": True, **fields}
    if path == CHAT:
        prompt = {"messages": [{"role": "user", "content": "Hello"}]}
    options = {"include_usage": True}
    return {**prompt, "stream": True, "receipt": True, "stream_options": options, **fields}


def events_in(text: str) -> list[Event]:
    blocks = [block.split("\n") for block in text.split("\n\n") if block]
    assert all(lines[0].startswith("id: ") and lines[-1].startswith("data: ") for lines in blocks)
    return [(lines[0].removeprefix("id: "), lines[-1].removeprefix("data: ")) for lines in blocks]


async def received(response: httpx.Response, num_events: int) -> list[Event]:
    text = ""
    async for piece in response.aiter_text():
        text += piece
        if text.count("\n\n") >= num_events:
            break
    return events_in(text)[:num_events]


@asynccontextmanager
async def streaming(
    gateway: Serving, path: str = COMPLETIONS, headers: Any = None, **fields: Any
) -> AsyncIterator[httpx.Response]:
    json = body_for(path, **{"resumable": True, **fields})
    async with gateway.http.stream("POST", path, json=json, headers=headers) as response:
        yield response


async def broken_after(gateway: Serving, num_events: int, **fields: Any) -> list[Event]:
    async with streaming(gateway, **fields) as response:
        return await received(response, num_events)


async def back(
    gateway: Serving, last_id: str, path: str = COMPLETIONS, **more: str
) -> httpx.Response:
    headers = {"last-event-id": last_id, **more}
    return await gateway.http.post(path, headers=headers, content=b"ignored")


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT])
async def test_a_stream_broken_at_any_event_goes_on_as_if_it_had_not_been(path: str) -> None:
    tokens = tokens_of(TEXT)
    async with serving(Script(tokens=tokens, ends_with_eos=True)) as gateway:
        async with streaming(gateway, path) as response:
            whole = events_in((await response.aread()).decode())
        for num_events in range(1, len(whole)):
            first = await broken_after(gateway, num_events, path=path)
            rest = await back(gateway, first[-1][0], path)
            events = first + events_in(rest.text)

            stream_id = events[0][0].rpartition(":")[0]
            assert [id for id, _ in events] == [f"{stream_id}:{n + 1}" for n in range(len(whole))]
            assert shape_of(events) == shape_of(whole)
            assert rest.headers["content-type"].startswith("text/event-stream")

    num_runs = len(whole)
    assert len(gateway.dispatcher.generations) == num_runs
    assert gateway.dispatcher.stops == [len(tokens) + 1] * num_runs
    assert whole[-1][1] == "[DONE]"
    assert '"usage":{' in whole[-2][1] and '"baton":' in whole[-2][1]


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, RESPONSES, MESSAGES])
async def test_what_is_said_again_is_the_same_to_the_byte(path: str) -> None:
    async with serving(Script(tokens=tokens_of(TEXT), ends_with_eos=True)) as gateway:
        for num_events in range(1, 6):
            first = await broken_after(gateway, num_events, path=path)
            rest = await back(gateway, first[-1][0], path)
            stream_id = first[0][0].rpartition(":")[0]
            whole = await back(gateway, f"{stream_id}:0", path)

            assert first + events_in(rest.text) == events_in(whole.text)

    assert len(gateway.dispatcher.generations) == 5


def shape_of(events: list[Event]) -> list[str]:
    """The data without the request's id and time, which differ from run to run."""
    return [data if data == "[DONE]" else data.partition('"model"')[2] for _, data in events]


async def test_a_client_may_come_back_twice_and_by_get() -> None:
    async with serving(Script(tokens=tokens_of(TEXT))) as gateway:
        first = await broken_after(gateway, 1)
        once = await back(gateway, first[0][0])
        twice = await gateway.http.get("/v1/streams", headers={"last-event-id": first[0][0]})

    assert once.text == twice.text
    assert len(events_in(once.text)) > 2
    assert len(gateway.dispatcher.generations) == 1


async def test_a_client_that_comes_back_early_follows_the_stream_live() -> None:
    script = Script(tokens=tokens_of(TEXT), stalls_after=2)
    async with serving(script) as gateway:
        first = await broken_after(gateway, 1)
        headers = {"last-event-id": first[0][0]}
        async with gateway.http.stream("GET", "/v1/streams", headers=headers) as response:
            second = await received(response, 1)

        assert gateway.dispatcher.stops == []
    assert second[0][0].endswith(":2")


async def test_a_header_makes_any_stream_resumable() -> None:
    async with serving(Script(tokens=tokens_of(TEXT))) as gateway:
        headers = {"x-baton-resumable": "1"}
        async with streaming(gateway, headers=headers, resumable=None) as response:
            events = events_in((await response.aread()).decode())

    assert events[-1][1] == "[DONE]"


async def test_other_streams_have_no_ids_and_stop_with_their_connection() -> None:
    async with serving(Script(tokens=tokens_of(TEXT), stalls_after=3)) as gateway:
        async with streaming(gateway, resumable=None) as response:
            line = await anext(response.aiter_lines())
        await soon(gateway.dispatcher.stopped)

    assert line.startswith("data: ")


async def test_a_stream_that_nobody_comes_back_for_is_stopped() -> None:
    script = Script(tokens=tokens_of(TEXT), stalls_after=3)
    async with serving(script, resume_window_s=0.01) as gateway:
        first = await broken_after(gateway, 1)
        await soon(gateway.dispatcher.stopped)
        late = await back(gateway, first[0][0])

    assert gateway.dispatcher.stops == [3]
    assert late.status_code == 404
    error = error_of(late)
    assert (error["code"], error["param"]) == ("stream_not_found", "Last-Event-ID")
    assert "this gateway does not hold that stream" in error["message"]


async def test_another_key_reads_nothing() -> None:
    keys = frozenset({"alice", "bob"})
    async with serving(Script(tokens=tokens_of(TEXT)), api_keys=keys) as gateway:
        first = await broken_after(gateway, 1, headers=KEY)
        unknown = await back(gateway, "unknown:1", **KEY)
        stolen = await back(gateway, first[0][0], authorization="Bearer bob")
        ended = await gateway.http.delete(
            f"/v1/streams/{first[0][0].partition(':')[0]}", headers={"authorization": "Bearer bob"}
        )
        anonymous = await back(gateway, first[0][0])
        own = await back(gateway, first[0][0], **KEY)

    assert stolen.status_code == ended.status_code == unknown.status_code == 404
    assert stolen.json() == unknown.json()
    assert anonymous.status_code == 401
    assert own.status_code == 200


async def test_a_stream_is_resumed_where_it_was_opened() -> None:
    async with serving(Script(tokens=tokens_of(TEXT))) as gateway:
        first = await broken_after(gateway, 1)
        elsewhere = await back(gateway, first[0][0], CHAT)

    assert elsewhere.status_code == 404


@pytest.mark.parametrize("last_id", ["nonsense", "{stream}:999", "{stream}:x"])
async def test_ids_that_no_event_had_are_refused(last_id: str) -> None:
    async with serving(Script(tokens=tokens_of(TEXT))) as gateway:
        first = await broken_after(gateway, 1)
        stream_id = first[0][0].rpartition(":")[0]
        response = await back(gateway, last_id.replace("{stream}", stream_id))

    assert response.status_code == 400
    assert error_of(response)["param"] == "Last-Event-ID"


async def test_coming_back_without_an_id_is_refused() -> None:
    async with serving() as gateway:
        response = await gateway.http.get("/v1/streams")

    assert response.status_code == 400
    assert "Last-Event-ID is missing" in error_of(response)["message"]


async def test_who_has_the_last_event_is_told_to_stop_coming_back() -> None:
    async with serving(Script(tokens=tokens_of(TEXT))) as gateway:
        async with streaming(gateway) as response:
            events = events_in((await response.aread()).decode())
        again = await back(gateway, events[-1][0])

    assert (again.status_code, again.content) == (204, b"")


async def test_a_client_that_wants_no_more_ends_its_stream() -> None:
    async with serving(Script(tokens=tokens_of(TEXT), stalls_after=3)) as gateway:
        first = await broken_after(gateway, 1)
        url = f"/v1/streams/{first[0][0].rpartition(':')[0]}"
        ended = await gateway.http.delete(url)
        await soon(gateway.dispatcher.stopped)
        again = await gateway.http.delete(url)

    assert (ended.status_code, again.status_code) == (204, 404)


async def test_an_error_before_the_first_event_has_its_status() -> None:
    async with (
        serving(Script(start_error=Overloaded("full", retry_after_s=7))) as gateway,
        streaming(gateway) as response,
    ):
        await response.aread()

    assert (response.status_code, response.headers["retry-after"]) == (429, "7")


async def test_an_error_in_mid_stream_is_an_event_that_is_said_again() -> None:
    script = Script(tokens=tokens_of(TEXT), error=Unavailable("gone"), num_before=2)
    async with serving(script) as gateway:
        async with streaming(gateway) as response:
            events = events_in((await response.aread()).decode())
        again = await back(gateway, events[0][0])

    assert '"code":"unavailable"' in events[-1][1]
    assert events_in(again.text) == events[1:]


async def test_a_stream_that_does_not_fit_is_refused_with_advice() -> None:
    script = Script(tokens=tokens_of(TEXT), stalls_after=1)
    async with serving(script, max_resumable_bytes=2000) as gateway:
        await broken_after(gateway, 1)
        async with streaming(gateway) as response:
            await response.aread()

    assert response.status_code == 429
    assert 1 <= int(response.headers["retry-after"]) <= 60
    assert "resumable streams is full" in error_of(response)["message"]


async def test_resumable_answers_in_one_piece_are_refused() -> None:
    async with serving() as gateway:
        response = await gateway.complete(prompt="Hello", resumable=True)

    assert response.status_code == 400
    assert error_of(response)["param"] == "resumable"


async def test_many_clients_break_and_come_back_at_once() -> None:
    tokens = tokens_of(TEXT)
    async with serving(Script(tokens=tokens)) as gateway:

        async def one(index: int) -> list[str]:
            first = await broken_after(gateway, 1 + index % 3)
            rest = events_in((await back(gateway, first[-1][0])).text)
            return shape_of(first + rest)

        outputs = await asyncio.gather(*(one(index) for index in range(16)))

    assert all(output == outputs[0] for output in outputs)
    assert gateway.dispatcher.stops == [len(tokens)] * 16


async def test_stopping_the_gateway_ends_the_streams_that_nobody_reads() -> None:
    async with serving(Script(tokens=tokens_of(TEXT), stalls_after=3)) as gateway:
        await broken_after(gateway, 1)

        await gateway.server.stop(grace_s=0)

    assert gateway.dispatcher.stops == [3]


async def test_a_draining_gateway_still_gives_the_rest() -> None:
    async with serving(Script(tokens=tokens_of(TEXT))) as gateway:
        first = await broken_after(gateway, 1)
        await gateway.server.begin_drain()
        rest = await back(gateway, first[0][0])

    assert events_in(rest.text)[-1][1] == "[DONE]"


async def test_the_openai_package_reads_resumable_streams_as_any_other() -> None:
    async with (
        serving(Script(tokens=tokens_of(TEXT))) as gateway,
        openai.AsyncOpenAI(base_url=f"{gateway.url}/v1", api_key="none") as client,
    ):
        stream = await client.completions.create(
            model=MODEL, prompt="Hello", stream=True, extra_body={"resumable": True}
        )
        text = "".join([chunk.choices[0].text async for chunk in stream])

    assert text == TEXT
