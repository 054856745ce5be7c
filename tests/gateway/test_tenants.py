"""Whose request it is, what that allows it, and how it keeps cached KV apart."""

from __future__ import annotations

from typing import Any

import grpc
import grpc.aio
import httpx
import pytest
from tests.gateway.scripted import Script, Serving, serving

from baton.core.clock import ManualClock
from baton.core.errors import Unauthenticated
from baton.gateway.access.api_keys import ApiKeys, known_keys
from baton.gateway.access.cache_salt import CacheSalts
from baton.gateway.access.config import GatewayConfig, TenantConfig
from baton.gateway.requests.generations.generation import Generation
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
    config = GatewayConfig(api_keys=frozenset({"common"}), tenants=TENANTS)
    keys = ApiKeys(known_keys(config))

    given = ("common", "acme-1", "acme-2", "bell-1")
    tenants = [keys.check(f"Bearer {key}").tenant for key in given]
    assert tenants == ["", "acme", "acme", "bell"]
    with pytest.raises(Unauthenticated):
        keys.check("Bearer four")


def test_tenants_alone_are_reason_enough_to_ask_for_a_key() -> None:
    with pytest.raises(Unauthenticated):
        ApiKeys(known_keys(GatewayConfig(tenants=TENANTS))).check(None)


OPERATED = (
    ("GET", "/debug/status"),
    ("GET", "/debug/leaks"),
    ("GET", "/debug/decisions"),
    ("POST", "/debug/drain"),
)


@pytest.mark.parametrize("key", ["common", "acme-1"])
async def test_only_an_operators_key_drains_replicas_and_looks_inside(key: str) -> None:
    common, operator = frozenset({"common"}), frozenset({"root"})
    async with serving(
        Script(), tenants=TENANTS, api_keys=common, operator_keys=operator, admin_port=0
    ) as gateway:

        async def status(method: str, path: str, key: str) -> int:
            body = {"replica": "d0", "force": True} if method == "POST" else None
            headers = {"authorization": f"Bearer {key}"}
            url = path if path.startswith("/v1/") else f"{gateway.admin_url}{path}"
            answer = await gateway.http.request(method, url, json=body, headers=headers)
            if answer.status_code == 403:
                error = answer.json()["error"]
                assert error["code"] == "permission_denied"
                assert "gateway.operator_keys" in error["message"]
            return answer.status_code

        assert [await status(*one, key) for one in OPERATED] == [403] * 4
        assert [await status(*one, "root") for one in OPERATED] == [200] * 4
        assert await status("GET", "/v1/models", "root") == 200


async def test_a_key_goes_before_others_no_further_than_it_may() -> None:
    tenants = {
        "acme": TENANTS["acme"],
        "bell": TenantConfig(api_keys=frozenset({"bell-1"}), min_priority=-5),
        "batch": TenantConfig(api_keys=frozenset({"batch-1"}), min_priority=10),
    }
    async with serving(Script(), tenants=tenants, operator_keys=frozenset({"root"})) as gateway:

        async def ask(path: str, key: str, **body: object) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return await gateway.http.post(path, json=body, headers=headers)

        for path, what in (("/v1/completions", "prompt"), ("/v1/embeddings", "input")):
            refused = await ask(path, "acme-1", **{what: "Hello"}, priority=-1)
            assert (refused.status_code, refused.json()["error"]["param"]) == (403, "priority")
            assert "gateway.tenants.acme.min_priority" in refused.json()["error"]["message"]
            gateway.dispatcher.generations.clear()
            for key, asked in (
                ("acme-1", 0), ("acme-1", 7), ("bell-1", -5), ("root", -99), ("batch-1", None)
            ):  # fmt: skip
                answer = await ask(path, key, **{what: "Hello"}, priority=asked)
                assert answer.status_code == 200, answer.text
            placed = [generation.priority for generation in gateway.dispatcher.generations]
            assert placed == [0, 7, -5, -99, 10]


async def test_grpc_refuses_what_a_key_may_not_ask_for_in_the_same_words() -> None:
    async with (
        serving(Script(), tenants=TENANTS) as gateway,
        grpc.aio.insecure_channel(gateway.grpc_target) as channel,
    ):
        stub, metadata = InferenceStub(channel), (("authorization", "Bearer acme-2"),)
        hasty = pb.SamplingOptions(priority=-1)
        message = pb.ChatMessage(role="user", content="Hello")
        calls: list[Any] = [
            stub.Generate(pb.GenerateRequest(text="Hello", sampling=hasty), metadata=metadata),
            stub.Chat(pb.ChatRequest(messages=[message], sampling=hasty), metadata=metadata),
        ]
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                _ = [response async for response in call]
            assert refused.value.code() is grpc.StatusCode.PERMISSION_DENIED
            assert "gateway.tenants.acme.min_priority" in (refused.value.details() or "")


async def test_without_keys_anybody_may_ask_for_any_priority() -> None:
    async with serving(Script()) as gateway:
        await gateway.complete(prompt="Hello", priority=-99)

    assert [generation.priority for generation in gateway.dispatcher.generations] == [-99]


def test_salts_follow_the_secret_the_tenant_and_the_requests_own_salt() -> None:
    one, other = CacheSalts("one"), CacheSalts("other")

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
    async with serving(Script(), tenants=TENANTS) as gateway:
        for path, body in (
            ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
            ("/v1/responses", {"input": "Hello"}),
            ("/v1/embeddings", {"input": "Hello"}),
            ("/v1/messages", {"messages": [{"role": "user", "content": "Hello"}]}),
        ):
            for headers in ({"authorization": "Bearer bell-1"}, {"x-api-key": "bell-1"}):
                response = await gateway.http.post(path, json=body, headers=headers)
                assert response.status_code == 200, response.text

    generations = gateway.dispatcher.generations
    assert [g.tenant for g in generations] == ["bell"] * 8
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


async def test_who_has_used_its_limit_is_refused_alike_whatever_it_asks_and_others_are_not() -> (
    None
):
    tenants = {
        **TENANTS,
        "small": TenantConfig(api_keys=frozenset({"s"}), requests_per_minute=5, weight=2),
    }
    asked: tuple[tuple[str, dict[str, Any]], ...] = (
        ("/v1/completions", {"prompt": "Hello", "max_tokens": 1}),
        ("/v1/chat/completions", {"messages": [{"role": "user", "content": "Hello"}]}),
        ("/v1/responses", {"input": "Hello"}),
        ("/v1/embeddings", {"input": "Hello"}),
        ("/rerank", {"query": "Hello", "documents": ["a", "b"], "pooling": "mean"}),
    )
    async with serving(Script(), tenants=tenants, clock=ManualClock()) as gateway:

        async def ask(key: str, path: str, body: dict[str, Any]) -> httpx.Response:
            headers = {"authorization": f"Bearer {key}"}
            return await gateway.http.post(path, json=body, headers=headers)

        answered = [await ask("s", *one) for one in asked]
        await ask("s", "/v1/estimate", asked[0][1])  # counts for nothing
        refused = [await ask("s", *one) for one in asked]
        others = await ask("bell-1", *asked[0])

    left = [answer.headers["x-ratelimit-remaining-requests"] for answer in answered]
    assert left == ["4", "3", "2", "1", "0"]
    assert [answer.status_code for answer in refused] == [429] * 5
    for answer in refused:
        assert answer.json()["error"]["code"] == "rate_limit_exceeded"
        assert 1 <= int(answer.headers["retry-after"]) <= 15
        assert answer.headers["x-ratelimit-limit-requests"] == "5"
        assert answer.headers["x-ratelimit-reset-requests"] == "1m0s"
    assert others.status_code == 200
    assert "x-ratelimit-limit-requests" not in others.headers


async def test_tokens_that_an_answer_had_are_taken_off_its_tenants_limit() -> None:
    small = TenantConfig(api_keys=frozenset({"s"}), tokens_per_minute=100)
    async with serving(Script(), tenants={"small": small}) as gateway:
        headers = {"authorization": "Bearer s"}
        body = {"prompt": [5, 6, 7], "max_tokens": 4}
        first = await gateway.http.post("/v1/completions", json=body, headers=headers)
        second = await gateway.http.post("/v1/completions", json=body, headers=headers)

    total = first.json()["usage"]["total_tokens"]
    left = int(second.headers["x-ratelimit-remaining-tokens"])
    assert 100 - 2 * total <= left < 100 - total  # a little comes back meanwhile


@pytest.mark.parametrize(
    ("tenant", "limits"),
    [("quick", (5.0, 300.0)), ("patient", (60.0, 900.0)), ("other", (7.0, 600.0))],
)
async def test_how_long_a_request_may_take_and_wait_is_its_tenants_to_say(
    tenant: str, limits: tuple[float, float]
) -> None:
    tenants = {
        "quick": TenantConfig(api_keys=frozenset({"quick"}), max_wait_s=5, request_timeout_s=300),
        "patient": TenantConfig(
            api_keys=frozenset({"patient"}), max_wait_s=60, request_timeout_s=900
        ),
        "other": TenantConfig(api_keys=frozenset({"other"})),
    }
    async with serving(Script(), tenants=tenants, max_wait_s=7.0) as gateway:
        generation = await generation_with(gateway, tenant)

    assert generation.time_left_s is not None
    max_wait_s, time_s = limits
    assert generation.max_wait_s == max_wait_s
    assert time_s - 100 < generation.time_left_s <= time_s
