"""Turns that go on from kept responses, with a real model: what is cached is found as ever."""

from __future__ import annotations

from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import openai
import pytest
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.gateway.access.config import GatewayConfig
from baton.gateway.server import GatewayServer
from baton.gateway.storage.config import StorageConfig
from baton.gateway.text.served_model import ServedModel

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "checkpoint"
BLOCK_SIZE = 16
QUESTIONS = ("What does the json module do? " * 3, "And collections?")


def small_engine(role: Role) -> Engine:
    cache = CacheConfig(block_size=BLOCK_SIZE, num_blocks=128)
    return assemble_engine(DEMO, EngineConfig(cache=cache), device="cpu")


@asynccontextmanager
async def gateway(fleet: Fleet, folder: Path) -> Any:
    config = GatewayConfig(
        port=0, grpc_port=0, admin_port=None, storage=StorageConfig(folder=str(folder))
    )
    model = ServedModel.load(DEMO, "demo")
    server = GatewayServer(model=model, dispatcher=fleet.dispatcher, config=config)
    await server.start()
    client = openai.AsyncOpenAI(base_url=f"http://127.0.0.1:{server.http_port}/v1", api_key="none")
    try:
        yield client.responses
    finally:
        await client.close()
        await server.stop(grace_s=0)


@pytest.mark.wide
async def test_the_next_turn_finds_as_much_in_the_cache_as_if_all_items_were_sent(
    tmp_path: Path,
) -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        common: Any = {"model": "demo", "max_output_tokens": 40, "temperature": 0}
        first_question, second_question = QUESTIONS

        def salted(salt: str) -> Any:
            return {**common, "extra_body": {"cache_salt": salt}}

        async with gateway(fleet, tmp_path) as responses:
            kept = await responses.create(input=first_question, **salted("kept"))
            sent = await responses.create(input=first_question, store=False, **salted("sent"))
        async with gateway(fleet, tmp_path) as responses:
            kept_next = await responses.create(
                input=second_question, previous_response_id=kept.id, **salted("kept")
            )
            items = [
                {"role": "user", "content": first_question},
                *sent.output,
                {"role": "user", "content": second_question},
            ]
            sent_next = await responses.create(input=items, store=False, **salted("sent"))
        await fleet.assert_nothing_is_held()

    assert kept_next.output_text == sent_next.output_text
    assert kept_next.usage == sent_next.usage
    cached = kept_next.usage.input_tokens_details.cached_tokens
    assert cached > kept.usage.input_tokens - BLOCK_SIZE > BLOCK_SIZE
