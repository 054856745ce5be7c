"""Resumable streams over real replicas: nothing is computed twice, and nothing stays behind."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import grpc.aio
import pytest
from tests.client.both_clients import KINDS, client_of
from tests.client.cut_proxy import cut_proxy
from tests.gateway.scripted import json_vocab_size, make_model
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.replicas import Role
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.gateway.access.config import GatewayConfig
from baton.gateway.server import GatewayServer
from baton.platform.observe.listeners import bind_first_free
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

OPTIONS: dict[str, Any] = {"max_tokens": 40, "temperature": 0, "ignore_eos": True}


def engine_for_text(role: Role = Role.DECODE) -> Engine:
    info = echo_info(vocab_size=json_vocab_size(), max_model_len=2048, num_layers=3)
    config = EngineConfig(cache=CacheConfig(block_size=4, num_blocks=256))
    return Engine(EchoRunner(info, num_blocks=256, block_size=4), config)


@asynccontextmanager
async def gateway_over(fleet: Fleet, **config: Any) -> AsyncIterator[GatewayServer]:
    settings = GatewayConfig(**{"port": 0, "grpc_port": 0, "admin_port": None, **config})
    server = GatewayServer(model=make_model(), dispatcher=fleet.dispatcher, config=settings)
    await server.start()
    if settings.admin_port is not None:
        await server.open_admin(bind_first_free("127.0.0.1", settings.admin_port))
    try:
        yield server
    finally:
        await server.stop(grace_s=0)


def num_sampled(fleet: Fleet) -> float:
    return sum(r.worker.metrics()["tokens_sampled_total"] for r in fleet.replicas.values())


@pytest.mark.parametrize("kind", KINDS)
async def test_a_stream_outlives_its_connections_and_no_token_is_computed_twice(kind: str) -> None:
    async with (
        running_fleet(make_engine=engine_for_text) as fleet,
        gateway_over(fleet) as server,
        cut_proxy(server.grpc_port) as proxy,
        client_of(kind, proxy.target) as client,
    ):
        whole = await client.generate("Hello world", **OPTIONS)
        before = num_sampled(fleet)
        num_deltas, text = 0, ""
        async with client.stream("Hello world", **OPTIONS) as stream:
            async for delta in stream:
                num_deltas, text = num_deltas + 1, text + delta.text
                if num_deltas in (1, 3, 4):
                    proxy.cut()

        assert text == whole.text
        assert delta.usage.output_tokens == 40
        assert num_sampled(fleet) - before == before
        await fleet.assert_nothing_is_held()


async def test_the_kv_of_a_stream_that_nobody_comes_back_for_is_freed() -> None:
    sampling = pb.SamplingOptions(max_tokens=1000, temperature=0, ignore_eos=True)
    request = pb.GenerateRequest(text="Hello world", sampling=sampling, resumable=True)
    async with (
        running_fleet(make_engine=engine_for_text) as fleet,
        gateway_over(fleet, resume_window_s=0.02) as server,
        grpc.aio.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel,
    ):
        call: Any = InferenceStub(channel).Generate(request)
        await call.read()
        call.cancel()

        await fleet.assert_nothing_is_held(timeout_s=60)
        assert num_sampled(fleet) < 1000
