"""Why a request ran where it ran, over HTTP with real replicas: asked for, foreseen, and told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from tests.gateway.resumable.test_resumable_fleet import engine_for_text, gateway_over
from tests.in_process_fleet import running_fleet
from typer.testing import CliRunner

from baton.gateway.access.config import SloClassConfig, TenantConfig
from baton.gateway.access.objectives import CLASS_HEADER, TTFT_HEADER
from baton.platform.cli.main import app

PROMPT = "the quick brown fox jumps over the lazy dog " * 2
COUNTED = "baton_gateway_slo_requests_total"
BODY = {"prompt": PROMPT, "max_tokens": 4, "temperature": 0}


@asynccontextmanager
async def asking(prefill: int = 2, **config: Any) -> AsyncIterator[httpx.AsyncClient]:
    async with asking_both(prefill, admin_port=None, **config) as (http, _):
        yield http


@asynccontextmanager
async def asking_both(
    prefill: int = 2, **config: Any
) -> AsyncIterator[tuple[httpx.AsyncClient, str]]:
    """A client of the public port, and the address for operators."""
    async with (
        running_fleet(prefill=prefill, make_engine=engine_for_text) as fleet,
        gateway_over(fleet, **{"admin_port": 0, **config}) as server,
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{server.http_port}") as http,
    ):
        yield http, f"http://127.0.0.1:{server.admin_port}"


def key(name: str) -> dict[str, str]:
    return {"authorization": f"Bearer {name}"}


async def test_an_answered_request_tells_its_candidates_what_was_predicted_and_what_came() -> None:
    async with asking() as http:
        answer = (await http.post("/v1/completions", json=BODY)).json()
        told = (await http.get(f"/v1/requests/{answer['id']}")).json()
        result = await asyncio.to_thread(
            CliRunner().invoke, app, ["explain", answer["id"], "--url", str(http.base_url)]
        )

    (decision,) = told["decisions"]
    assert f"cmpl-{told['id']}" == answer["id"]
    assert [one["is_chosen"] for one in decision["candidates"]] == [True, False]
    chosen = decision["candidates"][0]
    assert decision["prefill_replica"] == chosen["replica"]
    assert chosen["cost"] == min(one["cost"] for one in decision["candidates"])
    assert {"wait_s", "work_s", "harm_s"} <= chosen["terms"].keys()
    decodes, *others = decision["decode_candidates"]
    assert decodes["is_chosen"] and decodes["replica"] == decision["decode_replica"]
    assert all(decodes["cost_s"] <= one["cost_s"] for one in others)
    assert {"queued_s", "decode_s", "harm_s", "blocks_s"} <= decodes["terms"].keys()
    came = decision["outcome"]
    assert came["is_over"] and came["output_tokens"] == 4
    others_s = came["best_other_s"]
    assert came["regret_s"] == max(came["first_token_s"] - others_s, 0)
    assert result.exit_code == 0, result.output
    assert f"* {chosen['replica']}" in result.output and "regret" in result.output


async def test_only_its_own_tenant_sees_a_request_and_operators_at_their_port() -> None:
    tenants = {
        "acme": TenantConfig(api_keys=frozenset({"acme-1", "acme-2"})),
        "bell": TenantConfig(api_keys=frozenset({"bell-1"})),
    }
    keys = {"api_keys": frozenset({"one", "two"}), "operator_keys": frozenset({"root"})}
    async with asking_both(prefill=0, tenants=tenants, **keys) as (http, admin):
        for name in ("acme-1", "one"):
            headers = {**key(name), "x-request-id": f"of {name}".replace(" ", "-")}
            await http.post("/v1/completions", json=BODY, headers=headers)

        async def sees(name: str, request_id: str, url: str = "") -> bool:
            answer = await http.get(f"{url}/v1/requests/{request_id}", headers=key(name))
            if answer.status_code == 404:
                error = answer.json()["error"]
                assert error["code"] == "request_not_found" and "60 minutes" in error["message"]
            return answer.status_code == 200

        everybody = ("acme-1", "acme-2", "bell-1", "one", "two", "root")
        seen = {
            request_id: [name for name in everybody if await sees(name, request_id)]
            for request_id in ("of-acme-1", "of-one")
        }
        operated = [await sees("root", request_id, admin) for request_id in seen]
    assert seen == {"of-acme-1": ["acme-1", "acme-2"], "of-one": ["one"]}
    assert operated == [True, True]


async def test_a_request_is_held_to_the_class_that_it_names_or_that_its_tenant_has() -> None:
    config = {
        "slo_classes": {
            "chat": SloClassConfig(ttft_s=600.0, itl_s=600.0),
            "batch": SloClassConfig(ttft_s=3600.0),
        },
        "tenants": {
            "acme": TenantConfig(api_keys=frozenset({"acme-1"}), slo_class="batch", min_priority=-1)
        },
        "operator_keys": frozenset({"root"}),
    }
    async with asking_both(prefill=0, **config) as (http, admin):

        async def told(caller: str, **headers: str) -> dict[str, Any] | None:
            headers = {**key(caller), **headers}
            answer = (await http.post("/v1/completions", json=BODY, headers=headers)).json()
            told = await http.get(f"/v1/requests/{answer['id']}", headers=key(caller))
            slo: dict[str, Any] | None = told.json()["decisions"][0]["slo"]
            return slo

        of_tenant = await told("acme-1")
        named = await told("acme-1", **{CLASS_HEADER: "chat", TTFT_HEADER: "0.001"})
        none = await told("root")
        headers = {**key("acme-1"), CLASS_HEADER: "chatty"}
        unknown = await http.post("/v1/completions", json=BODY, headers=headers)
        probe = await http.get("/health", headers={CLASS_HEADER: "chatty", TTFT_HEADER: "soon"})
        page = (await http.get(f"{admin}/metrics", headers=key("root"))).text

    assert of_tenant == {"slo_class": "batch", "ttft_s": 3600.0, "itl_s": None, "outcome": "met"}
    assert named == {"slo_class": "chat", "ttft_s": 1e-6, "itl_s": 600.0, "outcome": "ttft"}
    assert none is None
    assert (unknown.status_code, unknown.headers["x-baton-ignored"]) == (200, CLASS_HEADER)
    assert probe.status_code == 200 and "x-baton-ignored" not in probe.headers
    counted = {line.split("{")[1] for line in page.splitlines() if line.startswith(COUNTED + "{")}
    for name, outcome in (("batch", "met"), ("chat", "ttft")):
        assert any(f'"{name}"' in one and f'"{outcome}"' in one for one in counted)


@pytest.mark.parametrize("request_id", ["a/b", "/a//b/", "a?b#c%2Fd", "cmpl-x/../y"])
async def test_a_request_is_found_whatever_its_id_is_made_of(request_id: str) -> None:
    async with asking(prefill=0) as http:
        headers = {"x-request-id": request_id}
        answer = (await http.post("/v1/completions", json=BODY, headers=headers)).json()
        for name in (request_id, answer["id"]):
            told = await http.get(f"/v1/requests/{quote(name, safe='')}")
            assert (told.status_code, told.json().get("id")) == (200, request_id)
        if set(request_id) <= set("ab/"):
            told = await http.get(f"/v1/requests/{request_id}")
            assert told.status_code == 200


async def test_requests_that_name_their_conversation_are_one_session_of_their_caller() -> None:
    async with asking(api_keys=frozenset({"one", "two"})) as http:

        async def session(caller: str, body: dict[str, Any], **headers: str) -> str:
            headers = {**key(caller), **headers}
            answer = (await http.post("/v1/completions", json=body, headers=headers)).json()
            told = await http.get(f"/v1/requests/{answer['id']}", headers=key(caller))
            name: str = told.json()["decisions"][0]["session"]
            return name

        text = "something else " * 9
        other = {**BODY, "prompt": text}
        named = await session("one", {**BODY, "prompt_cache_key": "c"})
        again = await session("one", {**other, "prompt_cache_key": "d"}, **{"x-session-id": "c"})
        apart = await session("one", {**other, "prompt_cache_key": "d"})
        foreign = await session("two", {**BODY, "prompt_cache_key": "c"})
        unnamed = await session("one", {**other, "prompt": text + "and on"})
        too_long = {**BODY, "prompt_cache_key": "c" * 300}
        refused = await http.post("/v1/completions", json=too_long, headers=key("one"))

    assert named == again and len({named, apart, foreign}) == 3
    assert unnamed == apart  # by what it begins with
    assert (refused.status_code, refused.json()["error"]["param"]) == (400, "prompt_cache_key")


async def test_an_estimate_runs_nothing_and_knows_what_is_cached() -> None:
    async with asking() as http:
        before = (await http.post("/v1/estimate", json=BODY)).json()
        nothing = await http.get("/v1/requests/cold")
        await http.post("/v1/completions", json=BODY)
        chat = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 7}
        of_chat = (await http.post("/v1/estimate", json=chat)).json()
        async with asyncio.timeout(120):
            while True:  # events of caches take a moment
                after = (await http.post("/v1/estimate", json=BODY)).json()
                if after["cached_tokens"]:
                    break
                await asyncio.sleep(0.02)
        several = await http.post("/v1/estimate", json={**BODY, "prompt": ["a", "b"]})

    assert nothing.status_code == 404
    assert before["cached_tokens"] == 0 and before["computed_tokens"] == before["prompt_tokens"]
    assert after["cached_tokens"] + after["computed_tokens"] == after["prompt_tokens"]
    for found in (before, after, of_chat):
        ttft = found["ttft_s"]
        assert 0 < ttft["low"] <= ttft["middle"] <= ttft["high"]
    assert of_chat["max_output_tokens"] == 7
    assert several.status_code == 400 and several.json()["error"]["param"] == "prompt"


async def test_a_captured_load_is_replayed_to_the_same_bytes_each_time(tmp_path: Path) -> None:
    async with asking_both() as (http, admin):
        for number in range(6):
            prompt = f"{PROMPT} {number % 2} {number}"
            await http.post("/v1/completions", json={**BODY, "prompt": prompt})
        captured = await http.get(f"{admin}/debug/decisions")
    file = tmp_path / "capture.jsonl"
    file.write_bytes(captured.content)

    def replayed(name: str) -> bytes:
        options = ["--policy", "round-robin", "--slo-ttft", "0.5", "--json", str(tmp_path / name)]
        result = CliRunner().invoke(app, ["replay", str(file), *options])
        assert result.exit_code == 0, result.output
        return (tmp_path / name).read_bytes()

    once = replayed("once.json")
    assert replayed("again.json") == once
    found = json.loads(once)
    assert [one["policy"] for one in found] == ["cost", "round-robin"]
    for one in found:
        assert len(one["requests"]) == 6
        assert one["num_would_meet"] == one["num_met"] + len(one["gained"]) - len(one["lost"])
    head, *requests = map(json.loads, captured.content.splitlines())
    assert {one["decision"]["computes"] for one in requests} <= {
        one["replica"] for one in head["replicas"]
    }
    ids = [request["hash_ids"] for request in requests]
    assert ids[0][:5] == ids[1][:5] and ids[0] != ids[1]
