"""Prompts to vectors, over HTTP and gRPC."""

from __future__ import annotations

import asyncio
import base64
import math
import struct
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.gateway.scripted import (
    MODEL,
    Script,
    ScriptedDispatcher,
    Serving,
    embedding_of,
    error_of,
    serving,
    soon,
    tokens_of,
)

from baton.core.errors import Unavailable
from baton.core.messages import Pooling
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

HELLO, FOX = tokens_of("Hello"), tokens_of("fox")


async def embed(gateway: Serving, **body: Any) -> Any:
    response = await gateway.http.post("/v1/embeddings", json={"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return response.json()


def unit(vector: tuple[float, ...]) -> list[float]:
    return [value / math.hypot(*vector) for value in vector]


async def test_inputs_become_vectors_of_length_one_in_their_order() -> None:
    async with serving() as gateway:
        answer = await embed(gateway, input=[HELLO, FOX])

    assert answer["object"] == "list"
    assert [entry["index"] for entry in answer["data"]] == [0, 1]
    assert answer["data"][0]["embedding"] == pytest.approx(unit(embedding_of(HELLO)))
    assert answer["data"][1]["embedding"] == pytest.approx(unit(embedding_of(FOX)))
    num_tokens = len(HELLO) + len(FOX)
    assert answer["usage"] == {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    assert {g.pooling for g in gateway.dispatcher.generations} == {Pooling.MEAN}
    assert len(gateway.dispatcher.stops) == 2


@pytest.mark.parametrize(("asked", "kept"), [(1, 1), (3, 3), (50, 50), (-1, 100), (None, 99)])
async def test_the_end_of_a_long_input_is_kept(asked: int | None, kept: int) -> None:
    tokens = (HELLO * 200)[: 99 if asked is None else 200]
    async with serving() as gateway:
        answer = await embed(gateway, input=tokens, truncate_prompt_tokens=asked)

    assert gateway.dispatcher.generations[0].prompt == tuple(tokens[-kept:])
    assert answer["usage"]["prompt_tokens"] == kept


@pytest.mark.parametrize("asked", [0, -2])
async def test_an_input_is_not_cut_to_nothing(asked: int) -> None:
    async with serving() as gateway:
        response = await gateway.http.post(
            "/v1/embeddings", json={"input": HELLO, "truncate_prompt_tokens": asked}
        )

    assert error_of(response)["param"] == "truncate_prompt_tokens"


async def test_vectors_can_be_raw_cut_or_packed() -> None:
    full = embedding_of(HELLO)
    async with serving() as gateway:
        raw = await embed(gateway, input=HELLO, normalize=False, pooling="last")
        cut = await embed(gateway, input=HELLO, dimensions=2)
        packed = await embed(gateway, input=HELLO, normalize=False, encoding_format="base64")

    data = base64.b64decode(packed["data"][0]["embedding"])
    assert raw["data"][0]["embedding"] == list(full)
    assert cut["data"][0]["embedding"] == pytest.approx([0.6, 0.8])
    assert struct.unpack(f"<{len(full)}f", data) == pytest.approx(full)
    assert gateway.dispatcher.generations[0].pooling is Pooling.LAST


async def test_an_input_may_be_as_long_as_the_context_but_no_longer() -> None:
    async with serving() as gateway:
        await embed(gateway, input=[1] * 100)
        response = await gateway.http.post("/v1/embeddings", json={"input": [[1], [1] * 101]})

    assert response.status_code == 400
    assert error_of(response)["code"] == "context_length_exceeded"
    assert error_of(response)["param"] == "input[1]"
    assert len(gateway.dispatcher.generations) == 1, "nothing runs of a request that is refused"


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "input"),
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": ["a", 1]}, "input[1]"),
        ({"input": ["a", ""]}, "input[1]"),
        ({"input": [1, -1]}, "input[1]"),
        ({"input": ["a"] * 2049}, "input"),
        ({"input": "a", "dimensions": 0}, "dimensions"),
        ({"input": "a", "dimensions": 5}, "dimensions"),
        ({"input": "a", "pooling": "max"}, "pooling"),
        ({"input": "a", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "a", "priority": 2**31}, "priority"),
        ({"input": "a", "temperature": 1}, "temperature"),
    ],
)
async def test_a_bad_field_is_named(body: dict[str, Any], field: str) -> None:
    async with serving(unknown_fields="refuse") as gateway:
        response = await gateway.http.post("/v1/embeddings", json=body)

    assert response.status_code == 400
    assert error_of(response)["param"] == field


async def test_one_input_that_fails_ends_all() -> None:
    async with serving(Script(start_error=Unavailable("lost"))) as gateway:
        response = await gateway.http.post("/v1/embeddings", json={"input": ["a", "b"]})
        metrics = gateway.server.metrics_page()

    assert response.status_code == 503
    assert 'baton_gateway_open_requests{model="org/tiny"} 0' in metrics


async def test_a_client_that_leaves_stops_them() -> None:
    dispatcher = ScriptedDispatcher(Script(starts=asyncio.Event()))
    async with serving(dispatcher=dispatcher) as gateway:
        task = asyncio.create_task(gateway.http.post("/v1/embeddings", json={"input": ["a"] * 40}))
        while len(dispatcher.generations) < 32:  # so many run at a time
            await asyncio.sleep(0.001)
        task.cancel()
        await soon(dispatcher.stopped)
        metrics = gateway.server.metrics_page()

    assert len(dispatcher.generations) == 32
    assert 'baton_gateway_open_requests{model="org/tiny"} 0' in metrics


async def test_grpc_embeds_alike() -> None:
    inputs = [pb.Prompt(text="Hello"), pb.Prompt(text="fox")]
    async with serving() as gateway:
        over_http = await embed(gateway, input="Hello")
        async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
            stub = InferenceStub(channel)
            answer = await stub.Embed(pb.EmbedRequest(inputs=inputs, request_id="mine"))
            with pytest.raises(grpc.aio.AioRpcError, match="dimensions"):
                await stub.Embed(pb.EmbedRequest(inputs=inputs, dimensions=5))
            with pytest.raises(grpc.aio.AioRpcError, match=r"inputs\[0\]"):
                await stub.Embed(pb.EmbedRequest(inputs=[pb.Prompt()]))

    assert answer.request_id == "mine"
    bos = gateway.dispatcher.generations[0].prompt[0]
    first, second = ([*entry.values] for entry in answer.embeddings)
    assert first == pytest.approx(over_http["data"][0]["embedding"])
    assert second == pytest.approx(unit(embedding_of((bos, *FOX))))
    assert answer.usage.prompt_tokens == len(HELLO) + len(FOX) + 2
