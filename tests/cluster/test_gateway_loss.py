"""Gateways that are killed, or replaced by an update, under streams that outlive them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import pytest
from tests.cluster.deployments import Deployed, Nodes, application, bearer
from tests.cluster.test_live_cluster import prompts, wait_for

from baton.client.async_client import AsyncBatonClient
from baton.client.retry import RetryPolicy

pytestmark = [pytest.mark.cluster, pytest.mark.wide, pytest.mark.timeout(1800)]

APP = "gateway-loss"
MAX_TOKENS = 500
PROMPTS = prompts(3, chars=500)


@dataclass(slots=True, eq=False)
class Stream:
    """What one client has of one stream, however many connections that took."""

    text: str = ""
    last_id: str = ""
    event_ids: list[int] = field(default_factory=list)
    num_broken: int = 0
    finish_reason: str | None = None


@dataclass(slots=True)
class Clients:
    app: Deployed
    grpc_target: str
    streams: dict[str, list[Stream]] = field(default_factory=dict)
    """By prompt, those that have come to their end."""
    reading: set[Stream] = field(default_factory=set)
    """By events, at this moment."""

    def num_broken(self) -> int:
        """Connections that streams by events have lost so far."""
        ended = [stream for some in self.streams.values() for stream in some]
        return sum(stream.num_broken for stream in (*ended, *self.reading))

    async def are_midway(self) -> None:
        """Each stream by events has begun, and has far to go."""

        def is_midway(stream: Stream) -> bool:
            return 3 <= len(stream.event_ids) <= MAX_TOKENS // 2

        async with asyncio.timeout(300):
            while len(self.reading) < len(PROMPTS) or not all(map(is_midway, self.reading)):
                await asyncio.sleep(0.01)

    async def by_events(self, prompt: str) -> Stream:
        """As a browser's EventSource would."""
        stream = Stream()
        self.reading.add(stream)
        while stream.finish_reason is None:
            try:
                await self._read_events(prompt, stream)
            except httpx.TransportError:
                stream.num_broken += bool(stream.last_id)
                await asyncio.sleep(0.2)
        self.reading.discard(stream)
        return stream

    async def _read_events(self, prompt: str, stream: Stream) -> None:
        body = {
            "prompt": prompt, "max_tokens": MAX_TOKENS, "temperature": 0, "ignore_eos": True,
            "stream": True, "resumable": True,
        }  # fmt: skip
        headers = bearer("old")
        async with httpx.AsyncClient(base_url=self.app.url, timeout=60) as http:
            if stream.last_id:
                headers["last-event-id"] = stream.last_id
                asked = http.stream("GET", "/v1/streams", headers=headers)
            else:
                asked = http.stream("POST", "/v1/completions", json=body, headers=headers)
            async with asked as response:
                if response.status_code == 503:  # no gateway, or no replica, at this moment
                    raise httpx.ConnectError("try again")
                assert response.status_code == 200, (await response.aread()).decode()
                event: dict[str, str] = {}
                async for line in response.aiter_lines():
                    if line:
                        name, _, value = line.partition(": ")
                        event[name] = value
                        continue
                    if "id" in event:
                        stream.last_id = event["id"]
                        stream.event_ids.append(int(stream.last_id.rpartition(":")[2]))
                    _take(stream, event.get("data", "[DONE]"))
                    event = {}
        if stream.finish_reason is None:
            stream.num_broken += 1

    async def by_sdk(self, prompt: str) -> Stream:
        stream = Stream()
        patient = RetryPolicy(max_attempts=60, max_delay_s=1.0)
        asked: dict[str, Any] = {"max_tokens": MAX_TOKENS, "temperature": 0.0, "ignore_eos": True}
        async with (
            AsyncBatonClient(self.grpc_target, api_key="old", retry=patient) as client,
            client.stream(prompt, **asked) as deltas,
        ):
            async for delta in deltas:
                stream.text += delta.text
                stream.finish_reason = delta.finish_reason or stream.finish_reason
        return stream

    @asynccontextmanager
    async def at_work(self) -> AsyncIterator[None]:
        """One of each kind for each prompt, again and again; all have ended when this has."""
        is_over = False

        async def ask(prompt: str, by: Callable[[str], Awaitable[Stream]]) -> None:
            self.streams.setdefault(prompt, []).append(await by(prompt))

        async def ask_by_events() -> None:
            # All begin at once: with equal pace, others might never be midway at the same time.
            while not is_over:
                await asyncio.gather(*(ask(prompt, self.by_events) for prompt in PROMPTS))

        async def ask_by_sdk(prompt: str) -> None:
            while not is_over:
                await ask(prompt, self.by_sdk)

        asking = [
            asyncio.create_task(ask_by_events()),
            *(asyncio.create_task(ask_by_sdk(prompt)) for prompt in PROMPTS),
        ]
        try:
            yield
        finally:
            is_over = True
            await asyncio.gather(*asking)


def _take(stream: Stream, data: str) -> None:
    if data == "[DONE]":
        return
    for choice in json.loads(data)["choices"]:
        stream.text += choice["text"]
        stream.finish_reason = choice["finish_reason"] or stream.finish_reason


def gateways() -> list[psutil.Process]:
    found = []
    for process in psutil.process_iter():
        try:
            if " ".join(process.cmdline()).startswith(f"ray::ServeReplica:{APP}:Gateway"):
                found.append(process)
        except psutil.Error:
            continue
    return found


async def until_two_serve(app: Deployed, other_than: set[int]) -> None:
    def are_there() -> bool:
        pids = {process.pid for process in gateways()}
        answers = [httpx.get(f"{app.url}/ready", timeout=10).status_code for _ in range(6)]
        return len(pids) == 2 and not pids & other_than and set(answers) == {200}

    await asyncio.to_thread(wait_for, are_there, 300.0)


async def test_streams_are_whole_whatever_becomes_of_their_gateway(
    nodes: Nodes, tmp_path: Path
) -> None:
    app = application(
        nodes,
        tmp_path,
        APP,
        prefill={"replicas": 1},
        decode={"replicas": 2},
        health={"drain_s": 2},  # less than a stream takes
    )
    app.config["gateway"]["replicas"] = 2
    await asyncio.to_thread(app.deploy)
    clients = Clients(app, f"127.0.0.1:{app.config['gateway']['grpc_port']}")
    await until_two_serve(app, set())
    undisturbed = {prompt: (await clients.by_events(prompt)).text for prompt in PROMPTS}

    async with clients.at_work():
        num_killed = 0
        # Serve chooses by chance whose streams a gateway has, and the oldest may have none.
        while num_killed < 2 or clients.num_broken() < len(PROMPTS):
            assert num_killed < 10
            await clients.are_midway()
            victim = min(gateways(), key=psutil.Process.create_time)
            victim.kill()
            num_killed += 1
            await until_two_serve(app, {victim.pid})
        await clients.are_midway()
        before = {process.pid for process in gateways()}
        await asyncio.to_thread(app.deploy, gateway={"kept_decisions": 77})  # starts all anew
        await until_two_serve(app, before)

    streams: list[tuple[str, Any]] = [
        (prompt, stream) for prompt, some in clients.streams.items() for stream in some
    ]
    for prompt, stream in streams:
        assert stream.text == undisturbed[prompt]
        assert stream.finish_reason == "length"
        assert stream.event_ids == sorted(set(stream.event_ids))
    app.undeploy()
