"""LoRA adapters are asked for by name over every face: what runs, what is answered, who may ask."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import httpx
import pytest
from tests.gateway.scripted import (
    MODEL,
    Script,
    Serving,
    error_of,
    make_model,
    serving,
    tokens_of,
)

from baton.client.async_client import AsyncBatonClient
from baton.gateway.access.cache_salt import CacheSalts
from baton.gateway.access.config import TenantConfig
from baton.gateway.text.classifier import Classifier, sigmoid, softmax
from baton.gateway.text.served_model import ServedModel

PLACES = {"sql": "/models/sql", "fr": "org/fr-lora"}
MODEL_WITH = replace(make_model(), aliases=("small",), adapters=PLACES)


def judging(*labels: str) -> ServedModel:
    classifier = Classifier(labels=labels, label_activation=softmax, pair_activation=sigmoid)
    return replace(MODEL_WITH, classifier=classifier)


SORTER, JUDGE = judging("a", "b", "c", "d"), judging("good")
HI: list[dict[str, object]] = [{"role": "user", "content": "hi"}]
COMPLETION = {"prompt": "Hello", "max_tokens": 2}
BODIES: dict[str, tuple[ServedModel, dict[str, Any]]] = {
    "/v1/completions": (MODEL_WITH, COMPLETION),
    "/v1/chat/completions": (MODEL_WITH, {"messages": HI, "max_tokens": 2}),
    "/v1/messages": (MODEL_WITH, {"messages": HI, "max_tokens": 2}),
    "/v1/responses": (MODEL_WITH, {"input": "hi", "max_output_tokens": 16}),
    "/v1/embeddings": (MODEL_WITH, {"input": "Hello"}),
    "/pooling": (SORTER, {"input": "Hello"}),
    "/v1/classify": (SORTER, {"input": "Hello"}),
    "/v1/score": (JUDGE, {"text_1": "Hello", "text_2": "fox"}),
    "/v1/rerank": (JUDGE, {"query": "Hello", "documents": ["fox"]}),
}


def ran(gateway: Serving) -> tuple[str, bytes]:
    """The adapter, and the salt, of the request that came last."""
    last = gateway.dispatcher.generations[-1]
    return last.adapter, last.salt


async def post(gateway: Serving, path: str, **body: Any) -> Any:
    response = await gateway.http.post(path, json=body)
    assert response.status_code == 200, response.text
    return response.json()


@pytest.mark.parametrize("path", BODIES)
async def test_the_model_of_a_request_names_its_adapter_and_so_does_the_answer(path: str) -> None:
    model, body = BODIES[path]
    async with serving(model=model) as gateway:
        for name, adapter in (("sql", "sql"), ("fr", "fr"), ("small", ""), (MODEL, "")):
            answer = await post(gateway, path, model=name, **body)

            assert ran(gateway) == (adapter, CacheSalts("").salt("", "", adapter))
            assert answer["model"] == (adapter or MODEL)


async def test_metrics_count_what_was_asked_of_each_adapter() -> None:
    script = Script(tokens=tokens_of(" fox"))
    async with serving(script, model=MODEL_WITH) as gateway:
        for name in ("sql", "sql", "small"):
            await post(gateway, "/v1/completions", model=name, **COMPLETION)
        page = gateway.server.metrics_page()

    labels = f'model="{MODEL}",outcome="ok",tenant=""'
    for adapter, number in (("sql", 2), ("", 1)):
        assert f'requests_total{{{labels},adapter="{adapter}"}} {number}' in page


@pytest.mark.parametrize("path", [*BODIES][:3])
async def test_so_does_every_event_of_a_stream(path: str) -> None:
    _, body = BODIES[path]
    async with serving(model=MODEL_WITH) as gateway:
        body = {"model": "sql", "stream": True, **body}
        response = await gateway.http.post(path, json=body)

    lines = [line[6:] for line in response.text.splitlines() if line.startswith("data: {")]
    events = [httpx.Response(200, text=line).json() for line in lines]
    named = [
        event.get("message", event)["model"]
        for event in events
        if "choices" in event or "message" in event
    ]
    assert named and set(named) == {"sql"}


async def test_grpc_and_the_sdk_name_adapters_the_same_way() -> None:
    async with (
        serving(Script(tokens=tokens_of(" fox")), model=MODEL_WITH) as gateway,
        AsyncBatonClient(gateway.grpc_target) as client,
    ):
        chatted = await client.chat([{"role": "user", "content": "hi"}], model="sql")
        assert (chatted.model, ran(gateway)[0]) == ("sql", "sql")
        generated = await client.generate("Hello", model="fr")
        assert (generated.model, ran(gateway)[0]) == ("fr", "fr")
        embedded = await client.embed(["Hello"], model="sql")
        assert (embedded.model, ran(gateway)[0]) == ("sql", "sql")
        listed = await client.models()

    assert [(one.id, one.root, one.parent) for one in listed] == [
        (MODEL, MODEL, ""),
        ("small", MODEL, ""),
        ("sql", "/models/sql", MODEL),
        ("fr", "org/fr-lora", MODEL),
    ]


async def test_models_are_listed_with_their_adapters_as_vllm_lists_them() -> None:
    async with serving(model=MODEL_WITH) as gateway:
        listed = (await gateway.http.get("/v1/models")).json()["data"]
        one = (await gateway.http.get("/v1/models/fr")).json()
        theirs = await gateway.http.get("/v1/models/sql", headers={"anthropic-version": "1"})

    assert [(each["id"], each["root"], each["parent"]) for each in listed] == [
        (MODEL, MODEL, None),
        ("small", MODEL, None),
        ("sql", "/models/sql", MODEL),
        ("fr", "org/fr-lora", MODEL),
    ]
    assert one == listed[-1]
    assert theirs.json()["id"] == "sql"


async def test_an_adapter_that_is_not_there_is_no_base_model() -> None:
    async with serving(model=MODEL_WITH) as gateway:
        refused = await gateway.complete(**{**COMPLETION, "model": "sqll"})

    assert refused.status_code == 404
    assert error_of(refused)["message"].endswith(f"has `{MODEL}` or `small` or `sql` or `fr`")
    assert gateway.dispatcher.generations == []


def tenant(key: str, *models: str) -> TenantConfig:
    return TenantConfig(api_keys=frozenset({key}), models=frozenset(models))


async def test_a_key_is_for_the_adapters_that_it_names_and_not_for_those_of_its_model() -> None:
    tenants = {"a": tenant("base", MODEL), "b": tenant("one", "sql"), "c": tenant("any")}
    may: dict[str, list[str | None]] = {}
    async with serving(model=MODEL_WITH, tenants=tenants) as gateway:
        for key in ("base", "one", "any"):
            headers = {"authorization": f"Bearer {key}"}
            statuses = {}
            for name in (None, MODEL, "small", "sql", "fr"):
                body = {"model": name, **COMPLETION}
                answer = await gateway.http.post("/v1/completions", json=body, headers=headers)
                statuses[name] = answer.status_code
            may[key] = [name for name, status in statuses.items() if status == 200]
            assert set(statuses.values()) <= {200, 403}
            listed = (await gateway.http.get("/v1/models", headers=headers)).json()["data"]
            assert [one["id"] for one in listed] == [name for name in may[key] if name]

    assert may == {
        "base": [None, MODEL, "small"],
        "one": ["sql"],
        "any": [None, MODEL, "small", "sql", "fr"],
    }
