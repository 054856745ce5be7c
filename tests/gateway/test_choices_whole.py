"""Choices, prompt logprobs and embeddings of a real model, through gateway, P and two D."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.replicas import Role
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.gateway.access.config import GatewayConfig
from baton.gateway.server import GatewayServer
from baton.gateway.text.served_model import ServedModel

DEMO = Path(__file__).parents[2] / "examples" / "demo_model" / "checkpoint"
PROMPT = "Which module of the standard library reads and writes JSON, and which one counts? " * 4


def demo_engine(role: Role) -> Engine:
    config = EngineConfig(cache=CacheConfig(block_size=16, num_blocks=256))
    return assemble_engine(DEMO, config, device="cpu")


@asynccontextmanager
async def demo_gateway(*, decode: int = 2) -> AsyncIterator[tuple[httpx.AsyncClient, Fleet]]:
    async with running_fleet(decode=decode, make_engine=demo_engine) as fleet:
        server = GatewayServer(
            model=ServedModel.load(DEMO, "demo"),
            dispatcher=fleet.dispatcher,
            config=GatewayConfig(host="127.0.0.1", port=0, grpc_port=0),
        )
        await server.start()
        url = f"http://127.0.0.1:{server.http_port}"
        try:
            async with httpx.AsyncClient(base_url=url, timeout=60) as client:
                yield client, fleet
        finally:
            await server.stop(grace_s=0)
        await fleet.assert_nothing_is_held()


async def complete(client: httpx.AsyncClient, **body: Any) -> Any:
    response = await client.post("/v1/completions", json={"prompt": PROMPT, **body})
    assert response.status_code == 200, response.text
    return response.json()


async def test_choices_share_their_prompts_blocks_on_one_replica() -> None:
    options = {"seed": 5, "temperature": 1.0, "max_tokens": 12, "ignore_eos": True}
    async with demo_gateway() as (client, _):
        several = await complete(client, n=4, receipt=True, **options)
        again = await complete(client, n=4, **options)
        one = await complete(client, **options)

    texts = [choice["text"] for choice in several["choices"]]
    first, *others = several["baton"]
    assert texts[0] == one["choices"][0]["text"], "choice 0 is the answer that n = 1 gives"
    assert texts == [choice["text"] for choice in again["choices"]]
    assert len(set(texts)) == 4
    assert {receipt["decode_replica"] for receipt in others} == {first["decode_replica"]}
    assert first["prefill_replica"]
    num_prompt = several["usage"]["prompt_tokens"]
    assert all(receipt["cached_tokens"] >= num_prompt - 16 for receipt in others)
    assert all(receipt["prefill_replica"] == "" for receipt in others)


async def test_best_of_returns_the_most_probable_of_what_it_draws() -> None:
    options = {"seed": 5, "temperature": 1.0, "max_tokens": 8, "logprobs": 0, "ignore_eos": True}
    async with demo_gateway(decode=1) as (client, _):
        drawn = await complete(client, n=4, **options)
        best = await complete(client, best_of=4, **options)

    means = {
        choice["text"]: sum(choice["logprobs"]["token_logprobs"]) / 8 for choice in drawn["choices"]
    }
    assert best["choices"][0]["text"] == max(means, key=lambda text: means[text])
    assert best["usage"]["completion_tokens"] == 4 * 8


async def test_an_echoed_prompts_logprobs_are_those_it_has_as_output() -> None:
    """Greedy output, echoed as a prompt, is as probable as when it was drawn."""
    async with demo_gateway(decode=1) as (client, _):
        drawn = await complete(
            client, temperature=0, max_tokens=8, logprobs=1, return_token_ids=True, ignore_eos=True
        )
        (choice,) = drawn["choices"]
        tokens = choice["prompt_token_ids"] + choice["token_ids"]
        echoed = await complete(client, prompt=tokens, echo=True, max_tokens=0, logprobs=1)

    logprobs = echoed["choices"][0]["logprobs"]
    assert logprobs["token_logprobs"][0] is None
    assert len(logprobs["tokens"]) == len(tokens)
    expected = choice["logprobs"]["token_logprobs"]
    assert logprobs["token_logprobs"][-8:] == pytest.approx(expected, abs=1e-4)
    assert logprobs["tokens"][-8:] == choice["logprobs"]["tokens"]


async def test_embeddings_do_not_depend_on_their_company() -> None:
    texts = ["json", PROMPT, "itertools chains"]
    async with demo_gateway(decode=1) as (client, _):
        together = (await client.post("/v1/embeddings", json={"input": texts})).json()
        alone = [
            (await client.post("/v1/embeddings", json={"input": text})).json() for text in texts
        ]
        last = await client.post("/v1/embeddings", json={"input": texts[1], "pooling": "last"})

    vectors = [entry["embedding"] for entry in together["data"]]
    for vector, single in zip(vectors, alone, strict=True):
        assert vector == pytest.approx(single["data"][0]["embedding"], abs=1e-5)
        assert sum(value**2 for value in vector) == pytest.approx(1)
    assert last.json()["data"][0]["embedding"] != pytest.approx(vectors[1], abs=1e-3)
