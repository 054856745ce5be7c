"""Clients that leave, probes, and a gateway that comes and goes."""

from __future__ import annotations

import asyncio
import socket

import grpc.aio
import pytest
from prometheus_client.parser import text_string_to_metric_families
from tests.gateway.scripted import Script, ScriptedDispatcher, serving, soon, tokens_of

from baton.core.chaos import Chaos
from baton.gateway.http.port import timeout_protocol
from baton.gateway.http.port.server import bind
from baton.gateway.requests.readiness import Missing
from baton.gateway.requests.reporting import Face, Reporting
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub


@pytest.mark.parametrize("is_streamed", [False, True])
async def test_a_client_that_leaves_stops_its_generation(is_streamed: bool) -> None:
    tokens = tokens_of("the fox")
    async with serving(Script(tokens=tokens, stalls_after=2)) as gateway:
        task = asyncio.create_task(gateway.complete(prompt="Hello", stream=is_streamed))
        while not gateway.dispatcher.generations:
            await asyncio.sleep(0.001)
        task.cancel()
        await soon(gateway.dispatcher.stopped)

    assert gateway.dispatcher.stops == [2]


async def test_a_client_that_leaves_while_it_waits_for_a_place_gives_it_up() -> None:
    async with serving(Script(starts=asyncio.Event())) as gateway:
        task = asyncio.create_task(gateway.complete(prompt="Hello"))
        while not gateway.dispatcher.generations:
            await asyncio.sleep(0.001)
        task.cancel()
        await soon(gateway.dispatcher.stopped)


@pytest.mark.parametrize("version", ["1.0", "0.9"])
async def test_a_client_before_http_1_1_gets_streams_without_chunks_that_end_with_the_connection(
    version: str,
) -> None:
    body = b'{"prompt": "Hello", "stream": true, "max_tokens": 2}'
    ask = f"POST /v1/completions HTTP/{version}\r\ncontent-type: application/json\r\n"
    async with serving() as gateway:
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.server.http_port)
        writer.write(f"{ask}content-length: {len(body)}\r\n\r\n".encode() + body)
        async with asyncio.timeout(60):
            head, _, events = (await reader.read()).partition(b"\r\n\r\n")
        writer.close()

    assert b"transfer-encoding" not in head and b"connection: close" in head
    assert events.startswith(b"data: {") and events.endswith(b"}\n\ndata: [DONE]\n\n")


async def test_a_client_that_breaks_off_a_stream_stops_its_generation() -> None:
    async with serving(Script(tokens=tokens_of("the fox"), stalls_after=3)) as gateway:
        body = {"prompt": "Hello", "stream": True}
        async with gateway.http.stream("POST", "/v1/completions", json=body) as response:
            async for _ in response.aiter_lines():
                break
        await soon(gateway.dispatcher.stopped)

    (num_delivered,) = gateway.dispatcher.stops
    assert 1 <= num_delivered <= 3


async def test_every_generation_is_stopped_once_at_its_end() -> None:
    async with serving() as gateway:
        await gateway.complete(prompt="Hello", max_tokens=2)
        await gateway.complete(prompt="Hello", max_tokens=2, stream=True)

    assert gateway.dispatcher.stops == [2, 2]


async def test_probes_tell_alive_from_ready() -> None:
    dispatcher = ScriptedDispatcher(ready=False)
    async with serving(dispatcher=dispatcher) as gateway:
        paths = ("/health", "/-/healthz", "/-/routes", "/ready")
        before = [(await gateway.http.get(path)).status_code for path in paths]
        dispatcher.ready = True
        after = (await gateway.http.get("/ready")).status_code
        proxy = (await gateway.http.get("/-/healthz")).text

    assert before == [200, 200, 200, 503]
    assert after == 200
    assert proxy == "success"


@pytest.mark.parametrize("keys", [[], ["secret"]])
async def test_ready_tells_why_starts_failed_only_where_nobody_needs_a_key(keys: list[str]) -> None:
    cause = "decode-1: /models/private: no config.json"
    lacking = Missing(
        role="decode", wanted=2, ready=0, waiting_for="decode-1: failed", causes=(cause,)
    )
    dispatcher = ScriptedDispatcher(ready=False, lacking=(lacking,))
    async with serving(dispatcher=dispatcher, api_keys=keys) as gateway:
        answer = await gateway.http.get("/ready")

    assert answer.status_code == 503
    [missing] = answer.json()["missing"]
    assert missing.pop("causes", []) == ([] if keys else [cause])
    assert missing == {"role": "decode", "wanted": 2, "ready": 0, "waiting_for": "decode-1: failed"}


async def test_draining_turns_unready_and_still_serves() -> None:
    async with serving() as gateway:
        await gateway.server.begin_drain()
        ready = await gateway.http.get("/ready")
        proxy = await gateway.http.get("/-/healthz")
        answer = await gateway.complete(prompt="Hello")

    assert (ready.status_code, proxy.status_code, answer.status_code) == (503, 503, 200)
    assert "draining" in ready.text
    assert answer.headers["connection"] == "close"


async def refuses_connections(port: int) -> None:
    async with asyncio.timeout(60):
        while True:
            try:
                _, writer = await asyncio.open_connection("127.0.0.1", port)
            except ConnectionError:  # refused, or reset while it waited to be accepted
                return
            writer.close()
            await asyncio.sleep(0.001)


async def test_stopping_waits_for_requests_under_way() -> None:
    starts = asyncio.Event()
    async with serving(Script(starts=starts)) as gateway:
        task = asyncio.create_task(gateway.complete(prompt="Hello"))
        while not gateway.dispatcher.generations:
            await asyncio.sleep(0.001)
        stopping = asyncio.create_task(gateway.server.stop(grace_s=20))
        await refuses_connections(gateway.server.http_port)
        assert not stopping.done()
        starts.set()
        response = await task
        await stopping

    assert response.status_code == 200


@pytest.mark.parametrize("has_asked", [True, False])
async def test_who_has_a_connection_when_the_port_closes_is_answered_once_more(
    has_asked: bool,
) -> None:
    """Kept alive, or just opened and not even accepted yet."""
    request = b"GET /health HTTP/1.1\r\nhost: gateway\r\n\r\n"
    async with serving() as gateway:
        with socket.create_connection(("127.0.0.1", gateway.server.http_port)) as client:
            client.setblocking(False)
            loop = asyncio.get_running_loop()
            if has_asked:
                await loop.sock_sendall(client, request)
                assert b"connection: close" not in await loop.sock_recv(client, 4096)
            stopping = asyncio.create_task(gateway.server.stop(grace_s=20))
            await refuses_connections(gateway.server.http_port)
            await loop.sock_sendall(client, request)
            answer = await loop.sock_recv(client, 4096)
            await stopping
            end = await loop.sock_recv(client, 4096)

    assert answer.startswith(b"HTTP/1.1 200")
    assert b"connection: close" in answer
    assert end == b""


async def test_a_stream_that_outlives_the_port_leaves_its_connection_open_for_one_more() -> None:
    """Its headers have promised so: the next request may be on its way when it ends."""
    script = Script(tokens=tokens_of("the fox"), stalls_after=2)
    async with serving(script) as gateway:
        body = {"prompt": "Hello", "stream": True}
        async with gateway.http.stream("POST", "/v1/completions", json=body) as response:
            lines = response.aiter_lines()
            await anext(lines)
            stopping = asyncio.create_task(gateway.server.stop(grace_s=20))
            await refuses_connections(gateway.server.http_port)
            script.continues.set()
            rest = [line async for line in lines]
        answer = await gateway.http.get("/health")
        await stopping

    assert "connection" not in response.headers
    assert rest[-2:] == ["data: [DONE]", ""]
    assert (answer.status_code, answer.headers["connection"]) == (200, "close")


async def test_who_says_nothing_holds_up_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timeout_protocol, "CLOSE_GRACE_S", 0.1)
    async with serving() as gateway:
        with socket.create_connection(("127.0.0.1", gateway.server.http_port)) as client:
            await asyncio.wait_for(gateway.server.stop(grace_s=600), timeout=120)
            client.setblocking(False)
            assert await asyncio.get_running_loop().sock_recv(client, 1) == b""


async def test_stopping_cancels_what_outlasts_the_grace() -> None:
    async with serving(Script(stalls_after=0)) as gateway:
        task = asyncio.create_task(gateway.complete(prompt="Hello"))
        while not gateway.dispatcher.generations:
            await asyncio.sleep(0.001)
        await gateway.server.stop(grace_s=0)
        await soon(gateway.dispatcher.stopped)
        await asyncio.gather(task, return_exceptions=True)

    assert gateway.dispatcher.stops == [0]


async def test_a_successor_can_take_over_the_ports() -> None:
    async with serving() as old:
        http_port, grpc_port = old.server.http_port, old.server.grpc_port
        async with serving(port=http_port, grpc_port=grpc_port) as new:
            await old.server.stop(grace_s=0)
            response = await new.complete(prompt="Hello")

    assert response.status_code == 200
    assert len(new.dispatcher.generations) == 1


def test_a_port_of_somebody_else_is_an_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other, pytest.raises(OSError):
        bind("127.0.0.1", other.getsockname()[1])


async def test_debug_pages_show_what_the_dispatcher_knows() -> None:
    async with serving(admin_port=0) as gateway:
        leaks = (await gateway.http.get(f"{gateway.admin_url}/debug/leaks")).json()
        status = (await gateway.http.get(f"{gateway.admin_url}/debug/status")).json()

    assert leaks == {"violations": []}
    assert status == {"replicas": ["d0"]}


async def test_metrics_count_requests_and_tokens() -> None:
    script = Script(tokens=tokens_of("fox"), num_cached=2)
    async with serving(script) as gateway:
        await gateway.complete(prompt=[5, 6, 7])
        await gateway.complete(prompt=[5, 6, 7], stream=True)
        text = gateway.server.metrics_page()

    values = {
        sample.name: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if not sample.labels.keys() & {"le", "method"}
    }
    assert values["baton_gateway_requests_total"] == 2
    assert values["baton_gateway_open_requests"] == 0
    assert values["baton_gateway_prompt_tokens_total"] == 6
    assert values["baton_gateway_cached_tokens_total"] == 4
    assert values["baton_gateway_output_tokens_total"] == 2 * len(tokens_of("fox"))
    assert values["baton_gateway_time_to_first_token_seconds_count"] == 2
    assert values["baton_gateway_admission_wait_seconds_count"] == 2
    assert values["baton_gateway_inter_token_seconds_count"] == 2 * (len(tokens_of("fox")) - 1)
    assert values["baton_gateway_waiting_requests"] == 3
    assert not [name for name in values if name.startswith("baton_replica_")]


async def test_calls_are_counted_by_path_and_status() -> None:
    async with serving() as gateway:
        await gateway.complete(prompt="Hello")
        await gateway.complete(prompt="")
        await gateway.http.get("/made/up")
        async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
            await InferenceStub(channel).ListModels(pb.ListModelsRequest())
        text = gateway.server.metrics_page()

    prefix = 'baton_gateway_calls_total{model="org/tiny",method='
    assert f'{prefix}"/v1/completions",status="200"}} 1' in text
    assert f'{prefix}"/v1/completions",status="400"}} 1' in text
    assert f'{prefix}"other",status="404"}} 1' in text
    assert f'{prefix}"ListModels",status="OK"}} 1' in text


class Watch:
    """What it is told, in order."""

    def __init__(self) -> None:
        self.told: list[tuple[str, ...]] = []

    def begins(self, face: Face) -> None:
        self.told.append(("begins", face))

    def ended(self, face: Face, path: str, method: str, status: str, seconds: float) -> None:
        assert seconds >= 0
        self.told.append((face, path, method, status))


async def test_who_watches_hears_of_each_call_to_the_api_once_and_of_who_leaves() -> None:
    watch = Watch()
    script = Script(tokens=tokens_of("the fox"), stalls_after=1)
    async with serving(script, reporting=Reporting(calls=watch)) as gateway:
        await gateway.complete(prompt="")
        await gateway.http.get("/v1/made-up")
        await gateway.http.get("/ready")
        async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
            await InferenceStub(channel).ListModels(pb.ListModelsRequest())
        leaving = asyncio.create_task(gateway.complete(prompt="Hello"))
        while not gateway.dispatcher.generations:
            await asyncio.sleep(0.001)
        leaving.cancel()
        async with asyncio.timeout(60):
            while len(watch.told) < 8:
                await asyncio.sleep(0.001)

    path = "/v1/completions"
    assert watch.told == [
        ("begins", "http"), ("http", path, "POST", "400"),
        ("begins", "http"), ("http", "other", "GET", "404"),
        ("begins", "grpc"), ("grpc", "", "ListModels", "OK"),
        ("begins", "http"), ("http", path, "POST", ""),
    ]  # fmt: skip


async def test_a_gateway_is_killed_on_request_where_that_is_wanted() -> None:
    killed = asyncio.Event()
    chaos = Chaos(kill=killed.set)
    async with serving(admin_port=0) as calm, serving(admin_port=0, chaos=chaos) as chaotic:
        refused = await calm.http.post(f"{calm.admin_url}/debug/chaos", json={"do": "kill"})
        url = f"{chaotic.admin_url}/debug/chaos"
        strange = await chaotic.http.post(url, json={"do": "stop"})
        answer = await chaotic.http.post(url, json={"do": "kill"})
        async with asyncio.timeout(60):
            await killed.wait()

    assert (refused.status_code, strange.status_code) == (403, 400)
    assert answer.json()["is_killed"]
    assert "chaos.enabled" in refused.text


async def test_a_gateway_makes_the_faults_it_is_told_until_it_is_told_others() -> None:
    chaos = Chaos(name="gateway")
    rule = {"at": "registry.watch", "fault": "cut", "rate": 1.0, "max_times": 2}
    async with serving(admin_port=0, chaos=chaos) as gateway:
        url = f"{gateway.admin_url}/debug/chaos"
        told = await gateway.http.post(url, json={"rules": [rule], "seed": 7})
        assert [chaos.draw("registry.watch") is not None for _ in range(2)] == [True] * 2
        again = await gateway.http.post(url, json={"rules": [rule], "seed": 7})
        assert chaos.draw("registry.watch") is None  # it goes on where it was
        impossible = {**rule, "fault": "corrupt"}
        refused = await gateway.http.post(url, json={"rules": [impossible]})
        assert chaos.is_on
        ended = await gateway.http.post(url, json={"rules": []})

    assert not chaos.is_on
    assert told.json() | {"num_faults": 2} == again.json() == ended.json()
    assert refused.status_code == 400
    assert "corrupt cannot happen at registry.watch" in refused.text


async def test_a_replica_is_drained_or_flipped_on_request_and_says_how_far_it_is() -> None:
    async with serving(admin_port=0) as gateway:
        url, other = f"{gateway.admin_url}/debug/drain", f"{gateway.admin_url}/debug/flip"
        answer = await gateway.http.post(url, json={"replica": "d0", "force": True})
        flipped = await gateway.http.post(other, json={"replica": "d0", "to": "prefill"})
        unknown = await gateway.http.post(url, json={"replica": "d1"})

    assert answer.json() == {"replica": "d0", "role": "decode", "num_open": 1}
    assert flipped.json() == {"replica": "d0", "role": "prefill", "num_open": 2}
    assert unknown.status_code == 400
    assert unknown.json()["error"]["param"] == "replica"
