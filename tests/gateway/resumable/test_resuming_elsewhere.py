"""Streams that outlive their gateway: whoever comes back to another one gets exactly the rest."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest
from tests.gateway.resumable.test_resumable_fleet import engine_for_text, gateway_over, num_sampled
from tests.in_process_fleet import Fleet, running_fleet

from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.server import GatewayServer
from baton.platform.security.connections import load_security
from baton.proto.channels import Channels
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
RESPONSES, MESSAGES = "/v1/responses", "/v1/messages"
NUM_TOKENS = 40


@asynccontextmanager
async def second_gateway(fleet: Fleet) -> AsyncIterator[GatewayServer]:
    """Another gateway in front of the same replicas."""
    dispatcher = ReplicaDispatcher(
        Routing(Cost(), local_prefill_tokens=0),
        max_waiting=100,
        no_replica_grace_s=5.0,
        channels=Channels(load_security(fleet.config.security)),
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
    sampling = {"temperature": 0.8, "ignore_eos": True, "stream": True, "resumable": True}
    match path:
        case "/v1/responses":
            return {"input": "Hello", "max_output_tokens": NUM_TOKENS, **sampling}
        case "/v1/completions":
            return {"prompt": "Hello", "max_tokens": NUM_TOKENS, "logprobs": 1, **sampling}
    messages = [{"role": "user", "content": "Hello"}]
    return {"messages": messages, "max_tokens": NUM_TOKENS, **sampling}


def at(server: GatewayServer) -> httpx.AsyncClient:
    return httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}", timeout=20)


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


@pytest.mark.parametrize("path", [COMPLETIONS, CHAT, RESPONSES, MESSAGES])
async def test_x(path: str) -> None:
    async with (
        running_fleet(make_engine=engine_for_text) as fleet,
        second_gateway(fleet) as other,
        at(other) as elsewhere,
    ):
        async with gateway_over(fleet) as server, at(server) as client:
            first = await first_events(client, path, 12)
            last_id = first[-1].partition("\n")[0].removeprefix("id: ")
            await fleet.dispatcher.fleet.close()  # its streams break: as when it is killed
            rest = await elsewhere.get("/v1/streams", headers={"last-event-id": last_id})
        print(first, rest.status_code, rest.text, num_sampled(fleet))
        assert 0
