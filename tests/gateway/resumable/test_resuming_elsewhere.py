"""Streams that outlive their gateway: whoever comes back to another one gets exactly the rest."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.client.both_clients import client_of
from tests.client.cut_proxy import cut_proxy
from tests.gateway.chat_models import (
    HERMES,
    PARIS,
    WEATHER,
    call_text,
    chat_model,
    dispatcher,
    said,
)
from tests.gateway.fleet.scripted_replica import PATIENT, until
from tests.gateway.resumable.test_resumable_fleet import engine_for_text, gateway_over, num_sampled
from tests.gateway.scripted import serving
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.errors import Unavailable
from baton.core.messages import ParkedStream, Receipt
from baton.core.parking import TakeStream
from baton.core.replicas import Role
from baton.engine.engine import Engine
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.links import decode_link
from baton.gateway.fleet.running.running_request import first_request
from baton.gateway.resumable.streams import owner_of
from baton.gateway.server import GatewayServer
from baton.platform.security.connections import load_security
from baton.proto.channels import Channels
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
OTHERS = (COMPLETIONS, RESPONSES, MESSAGES)
NUM_TOKENS = 24
NAMES = re.compile(
    r'"(id|item_id|created|created_at|completed_at|call_id|response_id)":("[^"]*"|[0-9.]+),?'
)


def slow_engine_for_text(role: Role = Role.DECODE) -> Engine:
    """Streams can be broken before they are computed to their end."""
    engine = engine_for_text(role)
    forward = engine.runner.forward

    def slowly(*args: Any, **options: Any) -> Any:
        time.sleep(0.003)
        return forward(*args, **options)

    engine.runner.forward = slowly  # type: ignore[method-assign]
    return engine


@pytest.fixture(autouse=True)
def _patiently(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long a replica on a busy machine takes to say whether it has a stream."""
    monkeypatch.setattr(decode_link, "TAKE_TIMEOUT_S", 60.0)


@asynccontextmanager
async def second_gateway(fleet: Fleet) -> AsyncIterator[GatewayServer]:
    """Another gateway in front of the same replicas."""
    dispatcher = ReplicaDispatcher(
        Routing(Cost(), local_prefill_tokens=0),
        max_waiting=100,
        no_replica_grace_s=60.0,
        channels=Channels(load_security(fleet.config.security), ping_timing=PATIENT),
    )
    first, fleet.dispatcher = fleet.dispatcher, dispatcher
    await fleet.sync()
    try:
        async with gateway_over(fleet) as server:
            fleet.dispatcher = first
            yield server
    finally:
        await dispatcher.fleet.close()


def body_for(path: str) -> dict[str, Any]:
    sampling = {
        "temperature": 0.8,
        "seed": 7,
        "ignore_eos": True,
        "stream": True,
        "resumable": True,
    }
    match path:
        case "/v1/responses":
            return {"input": "Hello", "max_output_tokens": NUM_TOKENS, **sampling}
        case "/v1/completions":
            return {"prompt": "Hello", "max_tokens": NUM_TOKENS, "logprobs": 1, **sampling}
    messages = [{"role": "user", "content": "Hello"}]
    return {"messages": messages, "max_tokens": NUM_TOKENS, **sampling}


def at(server: GatewayServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", timeout=120)


def events_in(text: str) -> list[str]:
    return [block for block in text.split("\n\n") if block]


async def first_events(client: httpx.AsyncClient, path: str, num_events: int) -> list[str]:
    text = ""
    async with client.stream("POST", path, json=body_for(path)) as response:
        async for piece in response.aiter_text():
            text += piece
            if text.count("\n\n") >= num_events:
                break
    return events_in(text)[:num_events]


def last_id(events: list[str]) -> str:
    return events[-1].partition("\n")[0].removeprefix("id: ")


def shape_of(events: list[str]) -> list[str]:
    """The data without ids and times, which differ from run to run."""
    return [NAMES.sub("", event.partition("data: ")[2]) for event in events]


@pytest.mark.parametrize(
    "path", [CHAT, *(pytest.param(path, marks=pytest.mark.wide) for path in OTHERS)]
)
async def test_a_stream_whose_gateway_is_lost_goes_on_at_another_with_the_very_next_event(
    path: str,
) -> None:
    async with (
        running_fleet(make_engine=slow_engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
    ):
        await first_events(elsewhere, path, 1000)  # from now on the prompt is cached
        whole = await first_events(elsewhere, path, 1000)
        before = num_sampled(fleet)
        async with gateway_over(fleet) as server, at(server) as client:
            first = await first_events(client, path, len(whole) // 3)
            await fleet.dispatcher.fleet.close()  # its streams break, as when it is killed
            rest = await elsewhere.get("/v1/streams", headers={"last-event-id": last_id(first)})
            again = await elsewhere.get("/v1/streams", headers={"last-event-id": last_id(first)})

        events = first + events_in(rest.text)
        assert shape_of(events) == shape_of(whole)
        stream_id = last_id(first).partition(":")[0]
        assert [last_id([event]) for event in events] == [
            f"{stream_id}:{number + 1}" for number in range(len(whole))
        ]
        assert again.text == rest.text  # it is held there by now
        assert num_sampled(fleet) - before < NUM_TOKENS + 4  # those of a step that was under way
        await fleet.assert_nothing_is_held()


async def test_only_the_same_key_on_the_same_path_finds_a_stream_elsewhere() -> None:
    alice, bob = {"authorization": "Bearer alice"}, {"authorization": "Bearer bob"}
    async with (
        running_fleet(make_engine=engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
    ):
        async with gateway_over(fleet) as server, at(server) as client:
            client.headers.update(alice)
            first = await first_events(client, COMPLETIONS, 3)
        back = {"last-event-id": last_id(first)}
        strangers = [
            await elsewhere.get("/v1/streams", headers={**back, **bob}),
            await elsewhere.get("/v1/streams", headers=back),
            await elsewhere.post(CHAT, headers={**back, **alice}),
            await elsewhere.get("/v1/streams", headers={**alice, "last-event-id": "none:1"}),
        ]
        own = await elsewhere.post(COMPLETIONS, headers={**back, **alice}, content=b"ignored")

        assert [answer.status_code for answer in strangers] == [404] * 4
        assert events_in(own.text)[-1].endswith("data: [DONE]")
        assert len(first) + len(events_in(own.text)) == NUM_TOKENS + 1


async def test_whoever_comes_back_twice_at_once_reads_one_stream() -> None:
    async with (
        running_fleet(make_engine=slow_engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
    ):
        async with gateway_over(fleet) as server, at(server) as client:
            first = await first_events(client, COMPLETIONS, 3)
        asked = []
        take_stream = other._gateway.dispatcher.take_stream

        async def counted(wanted: TakeStream) -> Any:
            asked.append(wanted.stream_id)
            return await take_stream(wanted)

        other._gateway.dispatcher.take_stream = counted  # type: ignore[method-assign]
        back = {"last-event-id": last_id(first)}
        rests = await asyncio.gather(
            *(elsewhere.get("/v1/streams", headers=back) for _ in range(3))
        )
        strange = await elsewhere.post(CHAT, headers=back)  # held here, but of another kind

        assert len(first) + len(events_in(rests[0].text)) == NUM_TOKENS + 1
        assert {rest.text for rest in rests} == {rests[0].text}
        assert (len(asked), len(other._gateway.keeper.streams)) == (1, 1)
        assert strange.status_code == 404
        streams = other._gateway.keeper.streams
        assert streams.num_bytes == sum(stream.num_bytes for stream in streams)


async def test_who_has_the_last_event_gets_204_elsewhere_and_who_claims_more_400() -> None:
    async with (
        running_fleet(make_engine=engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
    ):
        async with gateway_over(fleet) as server, at(server) as client:
            ids = [last_id(await first_events(client, COMPLETIONS, 1000)) for _ in range(2)]
        beyond = f"{ids[1].partition(':')[0]}:1000"
        answers = [
            await elsewhere.get("/v1/streams", headers={"last-event-id": event_id})
            for event_id in (ids[0], ids[0], beyond)
        ]

        assert [answer.status_code for answer in answers] == [204, 204, 400]


async def test_a_gateway_whose_stream_was_taken_writes_no_event_more() -> None:
    """Its client comes back behind the last event of the stream, and gets the very next one."""
    async with (
        running_fleet(make_engine=slow_engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
        gateway_over(fleet) as server,
        at(server) as client,
    ):
        text, rests = "", list[httpx.Response]()
        # However late whoever comes back is: it is not over before.
        with fleet.halting_at(NUM_TOKENS // 2) as go_on:
            try:
                async with client.stream("POST", CHAT, json=body_for(CHAT)) as response:
                    async for piece in response.aiter_text():
                        text += piece
                        if not rests and text.count("\n\n") >= 3:
                            back = {"last-event-id": last_id(events_in(text)[:1])}
                            refused = await elsewhere.post(COMPLETIONS, headers=back)
                            assert refused.status_code == 404  # and it goes on where it is
                            asking = asyncio.create_task(elsewhere.get("/v1/streams", headers=back))
                            await until(lambda: len(other._gateway.keeper.streams))
                            go_on()
                            rests.append(await asking)
            except httpx.RemoteProtocolError:
                was_cut = True
            else:
                was_cut = False
        events = events_in(rests[0].text)
        here = events_in(text)
        again = await client.get("/v1/streams", headers={"last-event-id": last_id(here)})

        assert was_cut and here[1:] == events[: len(here) - 1]  # none of them an error
        assert events_in(again.text) == events[len(here) - 1 :]
        assert num_sampled(fleet) < NUM_TOKENS + 8  # taken up twice: some of a step under way


async def test_what_a_stop_string_ended_is_found_elsewhere() -> None:
    body = {**body_for(COMPLETIONS), "resumable": True}
    async with (
        running_fleet(make_engine=engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
    ):
        whole = await elsewhere.post(COMPLETIONS, json={**body, "stream": False, "resumable": None})
        body["stop"] = whole.json()["choices"][0]["text"][6:9]
        async with gateway_over(fleet) as server, at(server) as client:
            stopped = events_in((await client.post(COMPLETIONS, json=body)).text)
        back = {"last-event-id": last_id(stopped[:2])}
        rest = await elsewhere.get("/v1/streams", headers=back)

        assert 2 < len(stopped) < NUM_TOKENS
        assert events_in(rest.text) == stopped[2:]
        await fleet.assert_nothing_is_held()


async def test_a_stream_that_nobody_could_go_on_with_goes_on_where_it_is() -> None:
    async with (
        running_fleet(make_engine=slow_engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
        gateway_over(fleet) as server,
        at(server) as client,
    ):
        with fleet.halting_at(NUM_TOKENS // 2) as go_on:
            first = await first_events(client, COMPLETIONS, 3)
            text, taken = "", False
            back = {"last-event-id": last_id(first)}
            async with elsewhere.stream("GET", "/v1/streams", headers=back) as response:
                async for piece in response.aiter_text():
                    text += piece
                    if not taken:  # the logprobs of the first tokens are known to no replica now
                        taken = True
                        stream_id = last_id(first).partition(":")[0]
                        again = await fleet.dispatcher.take_stream(
                            TakeStream(stream_id, owner_of(None))
                        )
                        go_on()

        assert again is None
        assert len(first) + len(events_in(text)) == NUM_TOKENS + 1
        assert events_in(text)[-1].endswith("data: [DONE]")


async def test_a_replica_that_cannot_be_asked_hides_no_stream_and_makes_none_unknown() -> None:
    async with (
        running_fleet(make_engine=engine_for_text, decode=2) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
    ):
        async with gateway_over(fleet) as server, at(server) as client:
            first = await first_events(client, COMPLETIONS, 3)
        links = other._gateway.dispatcher.fleet.links.decode.values()  # type: ignore[attr-defined]
        stream_id = last_id(first).partition(":")[0]
        (without,) = [
            link
            for link in links
            if not await link.take_stream(TakeStream(stream_id, owner_of(None)))
        ]
        await without.channel.close()
        nobody = ReplicaDispatcher(
            Routing(Cost(), local_prefill_tokens=0),
            max_waiting=100,
            no_replica_grace_s=60.0,
            channels=Channels(load_security(fleet.config.security)),
        )
        with pytest.raises(Unavailable, match="known here yet"):
            await nobody.take_stream(TakeStream("none", owner_of(None)))
        unknown = await elsewhere.get("/v1/streams", headers={"last-event-id": "none:1"})
        rest = await elsewhere.get("/v1/streams", headers={"last-event-id": last_id(first)})

        assert (unknown.status_code, "retry-after" in unknown.headers) == (503, True)
        assert len(first) + len(events_in(rest.text)) == NUM_TOKENS + 1


@pytest.mark.parametrize("is_ended_elsewhere", [False, True])
async def test_a_stream_that_its_client_ended_is_found_nowhere(is_ended_elsewhere: bool) -> None:
    async with (
        running_fleet(make_engine=slow_engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
        gateway_over(fleet) as server,
        at(server) as client,
    ):
        with fleet.halting_at(NUM_TOKENS // 2):
            first = await first_events(client, COMPLETIONS, 3)
            at_which = elsewhere if is_ended_elsewhere else client
            ended = await at_which.delete(f"/v1/streams/{last_id(first).partition(':')[0]}")
            await fleet.assert_nothing_is_held()
        back = {"last-event-id": last_id(first)}
        found = [await one.get("/v1/streams", headers=back) for one in (client, elsewhere)]

        assert (ended.status_code, *(answer.status_code for answer in found)) == (204, 404, 404)
        assert num_sampled(fleet) < NUM_TOKENS


async def test_a_complete_stream_that_its_client_ended_is_found_nowhere() -> None:
    async with (
        running_fleet(make_engine=engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
        gateway_over(fleet) as server,
        at(server) as client,
    ):
        whole = await first_events(client, COMPLETIONS, 1000)
        ended = await client.delete(f"/v1/streams/{last_id(whole).partition(':')[0]}")
        back = {"last-event-id": last_id(whole[:3])}
        found = [await one.get("/v1/streams", headers=back) for one in (client, elsewhere)]

        assert (ended.status_code, *(answer.status_code for answer in found)) == (204, 404, 404)


@pytest.mark.parametrize("kind", [pytest.param("sync", marks=pytest.mark.wide), "async"])
async def test_the_sdk_goes_on_at_whatever_gateway_answers(kind: str) -> None:
    options: dict[str, Any] = {"max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True}
    async with (
        running_fleet(make_engine=slow_engine_for_text) as fleet,
        second_gateway(fleet) as other,
        gateway_over(fleet) as server,
        cut_proxy(server.grpc_port) as proxy,
        client_of(kind, proxy.target) as client,
    ):
        whole = await client.generate("Hello world", **options)
        texts: list[str] = []
        async with client.stream("Hello world", **options) as stream:
            async for delta in stream:
                texts.append(delta.text)
                if len(texts) == 9:
                    proxy.port = other.grpc_port
                    proxy.cut()  # the first gateway lives, and still holds the stream

        assert "".join(texts) == whole.text
        assert delta.usage.output_tokens == NUM_TOKENS
        await fleet.assert_nothing_is_held(timeout_s=60)


@pytest.mark.parametrize("path", [CHAT, RESPONSES, MESSAGES])
async def test_both_gateways_give_tool_calls_the_same_ids(path: str) -> None:
    calls = call_text("get_weather", PARIS) + call_text("get_weather", PARIS)
    first, second = dispatcher(said(calls)), dispatcher(said(calls))
    function = WEATHER["function"]
    tool = {
        CHAT: WEATHER,
        RESPONSES: {"type": "function", **function},
        MESSAGES: {"name": function["name"], "input_schema": function["parameters"]},
    }[path]
    limit = "max_output_tokens" if path == RESPONSES else "max_tokens"
    body = {**body_for(path), "tools": [tool], limit: 500, "ignore_eos": False}
    async with serving(dispatcher=first, model=chat_model(HERMES)) as gateway:
        whole = events_in((await gateway.http.post(path, json=body)).text)
    (begun,) = first.generations
    second.parked = ParkedStream(request=first_request(begun), logprobs=(), receipt=Receipt())
    async with serving(dispatcher=second, model=chat_model(HERMES)) as gateway:
        back = {"last-event-id": last_id(whole[:1])}
        rest = events_in((await gateway.http.get("/v1/streams", headers=back)).text)

    call_id = re.compile(r'"call_[0-9A-Za-z]{24}"')
    ids = [set(call_id.findall("".join(events))) for events in (whole, rest)]
    assert len(ids[0]) == 2
    assert ids[0] == ids[1]
