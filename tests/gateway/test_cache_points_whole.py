"""Cache points and tenants with a real model: from a chat over HTTP to the blocks on P and D."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.gateway.access.config import GatewayConfig, TenantConfig
from baton.gateway.server import GatewayServer
from baton.gateway.text.served_model import ServedModel

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "checkpoint"
BLOCK_SIZE, NUM_BLOCKS = 16, 48
DOCUMENT = "The json module reads and writes JSON, and collections counts with its Counter. " * 6
TENANTS = {
    "acme": TenantConfig(api_keys=frozenset({"acme-key"}), kv_share=0.75),
    "bell": TenantConfig(api_keys=frozenset({"bell-key"})),
}


def small_engine(role: Role) -> Engine:
    cache = CacheConfig(block_size=BLOCK_SIZE, num_blocks=NUM_BLOCKS, pinned_fraction=0.6)
    shares = {name: t.kv_share for name, t in TENANTS.items() if t.kv_share is not None}
    return assemble_engine(DEMO, EngineConfig(cache=cache, kv_shares=shares), device="cpu")


@asynccontextmanager
async def gateway() -> AsyncIterator[tuple[httpx.AsyncClient, Fleet]]:
    async with running_fleet(make_engine=small_engine) as fleet:
        config = GatewayConfig(
            host="127.0.0.1", port=0, grpc_port=0, tenants=TENANTS, cache_secret="secret"
        )
        model = ServedModel.load(DEMO, "demo")
        server = GatewayServer(model=model, dispatcher=fleet.dispatcher, config=config)
        await server.start()
        url = f"http://127.0.0.1:{server.http_port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                yield client, fleet
        finally:
            await server.stop(grace_s=0)
        await fleet.assert_nothing_is_held()


async def ask(client: httpx.AsyncClient, key: str, question: str, **control: Any) -> Any:
    system = {"role": "system", "content": DOCUMENT, **control}
    response = await client.post(
        "/v1/chat/completions",
        json={
            "messages": [system, {"role": "user", "content": question}],
            "max_tokens": 8,
            "temperature": 0,
        },
        headers={"authorization": f"Bearer {key}"},
    )
    assert response.status_code == 200, response.text
    return response.json()


def cached_and_written(answer: Any) -> tuple[int, int]:
    details = answer["usage"]["prompt_tokens_details"]
    return details["cached_tokens"], details["cache_write_tokens"]


async def test_a_document_behind_a_cache_point_is_computed_once_for_its_tenant() -> None:
    hour = {"type": "ephemeral", "ttl": "1h"}
    async with gateway() as (client, fleet):
        first = await ask(client, "acme-key", "Which one counts?", cache_control=hour)
        _, num_written = cached_and_written(first)
        for number in range(12):  # more than fits beside it
            words = f"{number} " * 200
            body = {"prompt": words, "max_tokens": 2}
            headers = {"authorization": "Bearer acme-key"}
            await client.post("/v1/completions", json=body, headers=headers)
        other_question = await ask(client, "acme-key", "Which one reads?")
        same_again = await ask(client, "acme-key", "Which one counts?")
        bell = await ask(client, "bell-key", "Which one counts?")
        pinned = [len(engine.pool.prefixes.pins) for engine in fleet.engines.values()]

    assert num_written >= 4 * BLOCK_SIZE and num_written % BLOCK_SIZE == 0
    assert cached_and_written(first) == (0, num_written)
    assert cached_and_written(other_question) == (num_written, 0)
    assert cached_and_written(same_again)[0] >= num_written
    assert cached_and_written(bell) == (0, 0)
    assert pinned == [1, 1]
    answers = [a["choices"][0]["message"]["content"] for a in (first, same_again, bell)]
    assert len(set(answers)) == 1


async def test_a_prompt_beyond_its_tenants_share_is_a_mistake_the_caller_is_told_of() -> None:
    async with gateway() as (client, _):
        response = await client.post(
            "/v1/completions",
            json={"prompt": DOCUMENT * 4, "max_tokens": 8},
            headers={"authorization": "Bearer bell-key"},
        )

    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "prompt"
    assert "that tenant `bell` may have" in error["message"]
