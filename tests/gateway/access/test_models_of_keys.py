"""Keys, and tenants, that are for some models alone: by name, over HTTP and gRPC, and over time."""

from __future__ import annotations

from dataclasses import replace

import grpc
import grpc.aio
import httpx
import msgspec
import pytest
from tests.gateway.scripted import MODEL, Serving, make_model, serving

from baton.gateway.access.config import TenantConfig
from baton.gateway.access.key_entry import digest_of
from baton.gateway.requests.readiness import NOBODY
from baton.proto import inference_pb2 as pb
from baton.proto.inference_pb2_grpc import InferenceStub

ALIASED = replace(make_model(), aliases=("small", "other"))


def line(key: str, models: str) -> str:
    return f"sha256:{digest_of(key).hex()} name={key} models={models}"


def tenant(*keys: str, models: tuple[str, ...] = ()) -> TenantConfig:
    return TenantConfig(api_keys=frozenset(keys), models=frozenset(models))


TENANTS = {
    "all": tenant("any", line("some", "small+org/large")),
    "own": tenant("own", line("narrow", "other"), models=(MODEL,)),
    "alias": tenant("alias", line("none", "other"), models=("small",)),
}
SEEN = {
    "any": [MODEL, "small", "other"],
    "some": ["small"],
    "own": [MODEL, "small", "other"],
    "narrow": ["other"],
    "alias": ["small"],
    "none": [],
}


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def asked(gateway: Serving, key: str, **body: object) -> httpx.Response:
    body = {"prompt": [5, 6], "max_tokens": 1, **body}
    return await gateway.http.post("/v1/completions", json=body, headers=bearer(key))


async def test_a_key_sees_and_uses_the_names_that_it_and_its_tenant_are_for() -> None:
    names = [*ALIASED.names, None]
    async with serving(model=ALIASED, tenants=TENANTS) as gateway:
        listed, used = {}, {}
        async with grpc.aio.insecure_channel(gateway.grpc_target) as channel:
            stub = InferenceStub(channel)
            for key in SEEN:
                metadata = tuple(bearer(key).items())
                answer = await gateway.http.get("/v1/models", headers=bearer(key))
                listed[key] = [one["id"] for one in answer.json()["data"]]
                models = await stub.ListModels(pb.ListModelsRequest(), metadata=metadata)
                assert [one.id for one in models.models] == listed[key]
                statuses = [(await asked(gateway, key, model=name)).status_code for name in names]
                used[key] = [
                    name for name, is_in in zip(names, statuses, strict=True) if is_in == 200
                ]
                assert set(statuses) <= {200, 403}
                if key in ("any", "none"):
                    text = pb.TokenizeRequest(model=MODEL, text="x")
                    call = stub.Tokenize(text, metadata=metadata)
                    assert (await call.code()).name == (
                        "OK" if key == "any" else "PERMISSION_DENIED"
                    )

    assert listed == SEEN
    assert used == {key: [*seen, None] if seen else [] for key, seen in SEEN.items()}


async def test_each_api_says_in_its_own_words_which_models_a_key_is_for() -> None:
    async with serving(model=ALIASED, tenants=TENANTS) as gateway:
        refused = (await asked(gateway, "some", model=MODEL)).json()["error"]
        unknown = (await asked(gateway, "some", model="org/large")).json()["error"]
        message = await gateway.http.post(
            "/v1/messages",
            json={
                "model": "other",
                "max_tokens": 1,
                "messages": [{"role": "user", "content": "x"}],
            },
            headers={"x-api-key": "some", "anthropic-version": "2023-06-01"},
        )

    assert refused["type"] == "invalid_request_error" and refused["code"] == "model_not_found"
    assert refused["param"] == "model"
    assert (
        f"does not have access to the model `{MODEL}`: it is for `small`, as its `models`"
        in refused["message"]
    )
    assert "`small`" in unknown["message"] and "`other`" not in unknown["message"]
    assert message.status_code == 403 and message.json()["error"]["type"] == "permission_error"


async def test_models_of_a_key_change_while_it_serves(caplog: pytest.LogCaptureFixture) -> None:
    keys = frozenset({line("ci", "small")})
    async with serving(model=ALIASED, api_keys=keys) as gateway:
        before = (await asked(gateway, "ci", model="small")).status_code
        config = msgspec.structs.replace(
            gateway.server._gateway.config, api_keys=frozenset({line("ci", "org/large")})
        )
        gateway.server.reconfigure(config, NOBODY)
        after = (await asked(gateway, "ci", model="small")).status_code

    assert (before, after) == (200, 403)
    assert "are for other models than org/tiny" in caplog.text and "ci" in caplog.text
