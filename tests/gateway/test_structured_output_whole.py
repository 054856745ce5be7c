"""Structured output and forced calls through gateway, one prefill and one decode replica."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import grpc.aio
import jsonschema  # type: ignore[import-untyped]
import openai
from tests.in_process_fleet import running_fleet

from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.gateway.access.config import GatewayConfig
from baton.gateway.server import GatewayServer
from baton.gateway.text.served_model import ServedModel
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "checkpoint"
USER = [{"role": "user", "content": "Which module parses JSON? Which one counts things?"}]
SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "module": {"enum": ["json", "collections", "itertools"]},
        "why": {"type": "string", "maxLength": 24},
        "score": {"type": "integer", "minimum": 0, "maximum": 100},
    },
    "required": ["module", "why", "score"],
    "additionalProperties": False,
}
TOOL: dict[str, Any] = {"type": "function", "function": {"name": "look_up", "parameters": SCHEMA}}


def demo_engine(role: Role) -> Engine:
    config = EngineConfig(cache=CacheConfig(block_size=16, num_blocks=256))
    return assemble_engine(DEMO, config, device="cpu")


@asynccontextmanager
async def demo_gateway() -> AsyncIterator[tuple[Any, GatewayServer]]:
    """The `openai` package's client, untyped, and the server it talks to."""
    async with running_fleet(make_engine=demo_engine) as fleet:
        config = GatewayConfig(host="127.0.0.1", port=0, grpc_port=0)
        model = ServedModel.load(DEMO, "demo")
        server = GatewayServer(model=model, dispatcher=fleet.dispatcher, config=config)
        await server.start()
        try:
            url = f"http://127.0.0.1:{server.http_port}/v1"
            yield openai.AsyncOpenAI(base_url=url, api_key="none", max_retries=0), server
        finally:
            await server.stop(grace_s=0)
        await fleet.assert_nothing_is_held()


async def test_a_schema_holds_through_a_handoff() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "found", "schema": SCHEMA}}
    async with demo_gateway() as (client, _):
        chat = await client.chat.completions.create(
            model="demo",
            messages=USER,
            response_format=form,
            n=3,
            seed=1,
            temperature=1.0,
            extra_body={"receipt": True},
        )
        stream = await client.chat.completions.create(
            model="demo", messages=USER, response_format=form, temperature=0, stream=True
        )
        streamed = "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

    texts = [choice.message.content for choice in chat.choices]
    for text in (*texts, streamed):
        jsonschema.validate(json.loads(text), SCHEMA)
    assert [choice.finish_reason for choice in chat.choices] == ["stop"] * 3
    assert chat.model_extra["baton"][0]["prefill_replica"]


async def test_any_model_can_be_made_to_call() -> None:
    async with demo_gateway() as (client, server):
        chat = await client.chat.completions.create(
            model="demo",
            messages=USER,
            tools=[TOOL],
            tool_choice="required",
            parallel_tool_calls=False,
        )
        response = await client.responses.create(
            model="demo",
            input="Which module?",
            tools=[{"type": "function", **TOOL["function"]}],
            tool_choice={"type": "function", "name": "look_up"},
        )
        async with grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            request = pb.ChatRequest(
                messages=[pb.ChatMessage(role="user", content="Which module?")],
                tools=[pb.Tool(name="look_up", parameters=json.dumps(SCHEMA))],
                function="look_up",
            )
            parts = [part async for part in InferenceStub(channel).Chat(request)]

    calls = chat.choices[0].message.tool_calls
    assert chat.choices[0].finish_reason == parts[-1].finish_reason == "tool_calls"
    over_grpc = "".join(delta.arguments for part in parts for delta in part.tool_calls)
    for arguments in (*(c.function.arguments for c in calls), response.output[0].arguments):
        jsonschema.validate(json.loads(arguments), SCHEMA)
    jsonschema.validate(json.loads(over_grpc), SCHEMA)


async def test_the_demo_goes_through_a_loop_of_required_calls_to_an_answer() -> None:
    messages: list[dict[str, Any]] = list(USER)
    async with demo_gateway() as (client, _):
        for choice in ("required", "required", "none"):
            chat = await client.chat.completions.create(
                model="demo",
                messages=messages,
                tools=[TOOL],
                tool_choice=choice,
                parallel_tool_calls=False,
                temperature=0,
                max_tokens=64,
            )
            said = chat.choices[0].message
            messages.append(said.model_dump(exclude_none=True))
            for call in said.tool_calls or ():
                jsonschema.validate(json.loads(call.function.arguments), SCHEMA)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": "It is."})

    assert [message["role"] for message in messages] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    assert said.content and not said.tool_calls
