"""What is asked through a gateway of replicas that draft: choices, stop strings, calls and streams
that are come back to are those of replicas that do not."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
from tests.gateway.resumable.test_resumable_http import events_in, received, shape_of
from tests.in_process_fleet import EngineFactory, running_fleet

from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SpeculationConfig
from baton.engine.engine import Engine
from baton.gateway.access.config import GatewayConfig
from baton.gateway.server import GatewayServer
from baton.gateway.text.served_model import ServedModel
from baton.platform.models.model_folder import built_in_folder, find_model

COMPLETIONS, CHAT = "/v1/completions", "/v1/chat/completions"
CODE = (
    "class Stack:\n    def __init__(self):\n        self.items = []\n\n"
    "    def push(self, item):\n        self.items.append(item)\n\n"
)
SEEDED: dict[str, Any] = {"temperature": 0.7, "top_p": 0.9, "seed": 5, "max_tokens": 48}
ASKED: dict[str, tuple[str, dict[str, Any]]] = {
    "choices": (COMPLETIONS, {"prompt": CODE, "n": 3, "ignore_eos": True, **SEEDED}),
    "stop": (COMPLETIONS, {"prompt": CODE, "temperature": 0, "max_tokens": 64, "stop": ["self.v"]}),
    "calls": (
        CHAT,
        {
            "messages": [{"role": "user", "content": "Which modules parse JSON, and which CSV?"}],
            "tools": [
                {
                    "type": "function",
                    "function": {
                        "name": "look_up",
                        "parameters": {
                            "type": "object",
                            "properties": {"module": {"enum": ["json", "csv"]}},
                            "required": ["module"],
                            "additionalProperties": False,
                        },
                    },
                }
            ],
            "tool_choice": "required",
            "parallel_tool_calls": False,
            **SEEDED,
        },
    ),
}


def plain_engine(role: Role) -> Engine:
    return engine_of(SpeculationConfig())


def drafting_engine(role: Role) -> Engine:
    model = str(built_in_folder("draft"))
    drafting = SpeculationConfig(method="draft", model=model, max_tokens=4, adaptive=False)
    return engine_of(drafting if role is Role.DECODE else SpeculationConfig())


def engine_of(speculation: SpeculationConfig) -> Engine:
    config = EngineConfig(cache=CacheConfig(num_blocks=128), speculation=speculation)
    return assemble_engine(find_model("demo"), config, device="cpu")


@asynccontextmanager
async def gateway_over(make_engine: EngineFactory) -> AsyncIterator[httpx.AsyncClient]:
    async with running_fleet(make_engine=make_engine) as fleet:
        server = GatewayServer(
            model=ServedModel.load(find_model("demo"), "demo"),
            dispatcher=fleet.dispatcher,
            config=GatewayConfig(host="127.0.0.1", port=0, grpc_port=0),
        )
        await server.start()
        url = f"http://127.0.0.1:{server.http_port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=120) as client:
                yield client
        finally:
            await server.stop(grace_s=0)
        await fleet.assert_nothing_is_held()


async def answers(client: httpx.AsyncClient) -> dict[str, tuple[list[Any], int]]:
    """By what was asked: the choices, and how many drafted tokens of them were right."""
    found: dict[str, tuple[list[Any], int]] = {}
    for name, (path, body) in ASKED.items():
        response = await client.post(path, json={**body, "receipt": True})
        assert response.status_code == 200, response.text
        said = response.json()
        receipts = said["baton"] if isinstance(said["baton"], list) else [said["baton"]]
        for choice in said["choices"]:
            for call in choice.get("message", {}).get("tool_calls", ()):
                del call["id"]  # another each time
        found[name] = said["choices"], sum(each["accepted_tokens"] for each in receipts)
    return found


async def stream(client: httpx.AsyncClient) -> tuple[list[str], int]:
    """The events of one that breaks early and is come back to, and its drafted tokens that were
    right."""
    path, body = ASKED["choices"]
    body = {**body, "n": 1, "stream": True, "resumable": True, "receipt": True}
    async with client.stream("POST", path, json=body) as response:
        first = await received(response, 2)
    rest = await client.post(path, headers={"last-event-id": first[-1][0]}, content=b"ignored")
    events = first + events_in(rest.text)
    *said, last, done = events
    assert done[1] == "[DONE]"
    return shape_of(said), json.loads(last[1])["baton"]["accepted_tokens"]


async def test_what_a_gateway_says_does_not_depend_on_whether_its_replicas_draft() -> None:
    async with gateway_over(plain_engine) as client:
        expected, expected_stream = await answers(client), await stream(client)
    async with gateway_over(drafting_engine) as client:
        found, found_stream = await answers(client), await stream(client)

    assert expected["stop"][0][0]["finish_reason"] == "stop"
    assert expected["calls"][0][0]["finish_reason"] == "tool_calls"
    for name, (choices, num_accepted) in found.items():
        assert choices == expected[name][0], name
        assert num_accepted > 0, name
    assert "".join(text_of(found_stream[0])) == "".join(text_of(expected_stream[0]))
    assert found_stream[1] > 0
    assert {count for _, count in expected.values()} | {expected_stream[1]} == {0}


def text_of(shapes: list[str]) -> list[str]:
    """Of the events of a stream, which has fewer where several tokens come at once."""
    return [json.loads("{" + '"model"' + shape)["choices"][0]["text"] for shape in shapes]
