"""A coding agent's conversation over /v1/messages, turn by turn, on a real model with P and D.

It is sent as Claude Code does: instructions in blocks, of which one differs each time and is no
part of the prompt, tools, thinking sent back, several results in a turn, and cache points that move
on with the conversation.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anthropic
import httpx2
import pytest
from anthropic.types import Message
from tests.in_process_fleet import running_fleet

from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.gateway.access.config import GatewayConfig
from baton.gateway.server import GatewayServer
from baton.gateway.text.served_model import ServedModel

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "checkpoint"
BLOCK_SIZE = 16
NUM_TURNS = 15
EPHEMERAL = {"type": "ephemeral"}
TOOLS: list[dict[str, Any]] = [
    {
        "name": name,
        "description": "Of a file.",
        "input_schema": {"type": "object", "properties": {"path": {"type": "string"}}},
    }
    for name in ("Read", "Grep")
]


def small_engine(role: Role) -> Engine:
    cache = CacheConfig(block_size=BLOCK_SIZE, num_blocks=320, pinned_fraction=0.6)
    return assemble_engine(DEMO, EngineConfig(cache=cache), device="cpu")


def turn(number: int) -> list[dict[str, Any]]:
    """What the assistant did, and what came of it: every third time two things at once."""
    names = ("Read", "Grep") if number % 3 == 0 else ("Read",)
    calls = [
        {"type": "tool_use", "id": f"{name}_{number}", "name": name, "input": {"path": f"{number}"}}
        for name in names
    ]
    thinking = {"type": "thinking", "thinking": f"Step {number}.", "signature": "c2ln"}
    results = [
        {"type": "tool_result", "tool_use_id": call["id"], "content": f"line {number}: return"}
        for call in calls
    ]
    return [
        {"role": "assistant", "content": [thinking, *calls]},
        {"role": "user", "content": results},
    ]


def body_of(number: int) -> dict[str, Any]:
    """Of the request after so many turns."""
    asked = {"role": "user", "content": [{"type": "text", "text": "Mend the bug in a.py."}]}
    messages = [asked, *(message for n in range(number) for message in turn(n))]
    last = messages[-1]["content"]
    last[-1] = {**last[-1], "cache_control": EPHEMERAL}
    system = [
        {"type": "text", "text": f"x-anthropic-billing-header: cch={number};"},
        {"type": "text", "text": "You mend bugs.", "cache_control": EPHEMERAL},
        {"type": "text", "text": "Use the tools.", "cache_control": EPHEMERAL},
    ]
    return {"model": "demo", "system": system, "tools": TOOLS, "messages": messages}


@pytest.mark.wide
async def test_each_turn_of_an_agent_computes_only_what_is_new() -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        server = GatewayServer(
            model=ServedModel.load(DEMO, "demo"),
            dispatcher=fleet.dispatcher,
            config=GatewayConfig(host="127.0.0.1", port=0, grpc_port=0),
        )
        await server.start()
        try:
            async with anthropic.AsyncAnthropic(
                base_url=f"http://127.0.0.1:{server.http_port}",
                api_key="none",
                max_retries=0,
                http_client=httpx2.AsyncClient(verify=False, timeout=60),
            ) as client:
                answers = [await ask(client, body_of(number)) for number in range(NUM_TURNS + 1)]
                last = {**body_of(NUM_TURNS), "thinking": {"type": "adaptive"}}
                counted = await client.messages.count_tokens(**last)
        finally:
            await server.stop(grace_s=0)
        await fleet.assert_nothing_is_held()

    lens = [prompt_len(answer) for answer in answers]
    assert lens == sorted(set(lens)) and counted.input_tokens == lens[-1]
    assert answers[0].usage.cache_read_input_tokens == 0
    for answer, num_known in zip(answers[1:], lens, strict=False):
        usage = answer.usage
        # All whole blocks of the last prompt, but for the words that ask for the answer; and what
        # is new is kept up to its last whole block.
        assert (usage.cache_read_input_tokens or 0) > num_known - 2 * BLOCK_SIZE, usage
        assert usage.cache_creation_input_tokens and usage.input_tokens <= BLOCK_SIZE + 4, usage


async def ask(client: anthropic.AsyncAnthropic, body: dict[str, Any]) -> Message:
    async with client.messages.stream(
        **body, max_tokens=32_000, stop_sequences=[" "], thinking={"type": "adaptive"}
    ) as stream:
        return await stream.get_final_message()


def prompt_len(answer: Message) -> int:
    usage = answer.usage
    cached = (usage.cache_read_input_tokens or 0) + (usage.cache_creation_input_tokens or 0)
    return usage.input_tokens + cached
