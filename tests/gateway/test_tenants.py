"""Whose request it is, and how that keeps cached KV apart."""

from __future__ import annotations

import grpc.aio
import pytest
from tests.gateway.scripted import Script, Serving, serving

from baton.core.errors import Unauthenticated
from baton.platform.gateway.api_keys import ApiKeys
from baton.platform.gateway.cache_salt import CacheSalts, draw_secret
from baton.platform.gateway.config import TenantConfig
from baton.platform.gateway.generation import Generation
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

TENANTS = {
    "acme": TenantConfig(api_keys=frozenset({"acme-1", "acme-2"}), kv_share=0.5),
    "bell": TenantConfig(api_keys=frozenset({"bell-1"})),
}


async def generation_with(gateway: Serving, key: str, **body: object) -> Generation:
    headers = {"authorization": f"Bearer {key}"}
    await gateway.http.post(
        "/v1/completions", json={"prompt": "Hello", "max_tokens": 1, **body}, headers=headers
    )
    return gateway.dispatcher.generations[-1]


def test_a_key_says_whose_the_request_is() -> None:
    keys = ApiKeys(["common"], {"acme": ["one", "two"], "bell": ["three"]})

    assert [keys.check(f"Bearer {key}") for key in ("common", "one", "two", "three")] == [
        "",
        "acme",
        "acme",
        "bell",
    ]
    with pytest.raises(Unauthenticated):
        keys.check("Bearer four")


def test_tenants_alone_are_reason_enough_to_ask_for_a_key() -> None:
    with pytest.raises(Unauthenticated):
        ApiKeys([], {"acme": ["one"]}).check(None)


def test_salts_follow_the_secret_the_tenant_and_the_requests_own_salt() -> None:
    one, other = CacheSalts(draw_secret()), CacheSalts(draw_secret())

    salts = [
        *(one.salt(tenant, own) for tenant in ("", "a", "b") for own in ("", "x")),
        other.salt("a", ""),
        one.salt("ax", ""),
    ]

    assert len(set(salts)) == len(salts)
    assert one.salt("a", "x") == one.salt("a", "x")
    assert one.salt("", "") == other.salt("", "") == b""


def test_where_a_tenant_ends_and_a_salt_begins_cannot_be_made_up() -> None:
    salts = CacheSalts("secret")

    assert salts.salt("ab", "c") != salts.salt("a", "bc")


async def test_equal_prompts_of_two_tenants_have_blocks_of_different_names() -> None:
    async with serving(Script(), tenants=TENANTS, cache_secret="secret") as gateway:
        first = await generation_with(gateway, "acme-1")
        again = await generation_with(gateway, "acme-2")
        other = await generation_with(gateway, "bell-1")
        own = await generation_with(gateway, "acme-1", cache_salt="mine")

    assert [g.tenant for g in (first, again, other, own)] == ["acme", "acme", "bell", "acme"]
    assert first.salt == again.salt
    assert len({first.salt, other.salt, own.salt}) == 3


async def test_two_gateways_of_a_deployment_name_blocks_alike() -> None:
    salts: list[bytes] = []
    for secret in ("shared", "shared", "another deployment's"):
        async with serving(Script(), tenants=TENANTS, cache_secret=secret) as gateway:
            salts.append((await generation_with(gateway, "acme-1")).salt)

    assert salts[0] == salts[1] != salts[2]


async def test_chats_responses_and_embeddings_are_their_tenants_as_well() -> None:
    headers = {"authorization": "Bearer bell-1"}
    async with serving(Script(), tenants=TENANTS) as gateway:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
            ("/v1/responses", {"input": "Hello"}),
            ("/v1/embeddings", {"input": "Hello"}),
        ):
            response = await gateway.http.post(path, json=body, headers=headers)
            assert response.status_code == 200, response.text

    generations = gateway.dispatcher.generations
    assert [g.tenant for g in generations] == ["bell"] * 3
    assert len({g.salt for g in generations}) == 1 and generations[0].salt


async def test_grpc_knows_the_same_tenants() -> None:
    async with (
        serving(Script(), tenants=TENANTS) as gateway,
        grpc.aio.insecure_channel(gateway.grpc_target) as channel,
    ):
        stub, metadata = InferenceStub(channel), (("authorization", "Bearer acme-2"),)
        message = pb.ChatMessage(role="user", content="Hello")
        _ = [r async for r in stub.Generate(pb.GenerateRequest(text="Hello"), metadata=metadata)]
        _ = [r async for r in stub.Chat(pb.ChatRequest(messages=[message]), metadata=metadata)]
        await stub.Embed(pb.EmbedRequest(inputs=[pb.Prompt(text="Hello")]), metadata=metadata)

    assert [g.tenant for g in gateway.dispatcher.generations] == ["acme"] * 3
    assert len({g.salt for g in gateway.dispatcher.generations}) == 1
