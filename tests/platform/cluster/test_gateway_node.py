"""A gateway as it is deployed, before any replica exists."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from threading import Event, current_thread, main_thread
from typing import Any

import httpx
import pytest

from baton.core.ids import Epoch, ReplicaId
from baton.core.metrics import gauge
from baton.core.replicas import Membership, Role, StartingReplica
from baton.gateway.access.config import GatewayConfig
from baton.gateway.fleet.traffic import TrafficReport
from baton.platform.cluster import gateway_node
from baton.platform.cluster.gateway_node import GatewayNode, apart
from baton.platform.cluster.registry import planner_link
from baton.platform.config.deployment import DeploymentConfig, override
from baton.platform.models.model_folder import find_model
from baton.platform.planner.planner_metrics import PlannerReply
from baton.platform.security.secrets import with_secrets

CONFIG = override(
    DeploymentConfig(),
    {
        "gateway.host": "127.0.0.1",
        "gateway.port": 0,
        "gateway.grpc_port": 0,
        "gateway.admin_port": 0,
        "prefill.replicas": 2,
        "decode.replicas": 1,
    },
)
LOADING = StartingReplica(
    replica_id=ReplicaId("decode-1"), role=Role.DECODE, stage="loading weights", fraction=0.5
)


@pytest.fixture(autouse=True)
def user_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What is kept there is the test's own."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


class OneStarts:
    """A registry that has one thing to tell."""

    def __init__(self) -> None:
        self.num_asked = 0

    async def watch(self, incarnation: Epoch | None, version: int) -> Membership:
        self.num_asked += 1
        if self.num_asked > 1:
            await asyncio.Event().wait()
        return Membership(
            incarnation=Epoch("r"), version=1, age_s=1.0, replicas=(), starting=(LOADING,)
        )


async def test_ready_names_all_that_is_configured_and_how_far_it_is() -> None:
    node = GatewayNode(CONFIG, find_model(CONFIG.model))
    registry = OneStarts()
    await node.start(registry)
    try:
        async with httpx.AsyncClient(timeout=60) as http, asyncio.timeout(120):
            while registry.num_asked < 2:
                await asyncio.sleep(0.01)
            answer = await http.get(f"http://127.0.0.1:{node.server.http_port}/ready")
    finally:
        await node.stop(0)

    assert answer.status_code == 503
    assert {it["role"]: (it["wanted"], it["waiting_for"]) for it in answer.json()["missing"]} == {
        "decode": (1, "decode-1: loading weights 50% (0 s)"),
        "prefill": (2, "Ray to start 2 processes"),
    }


@asynccontextmanager
async def listening(node: GatewayNode) -> AsyncIterator[httpx.AsyncClient]:
    await node.start(OneStarts())
    try:
        url = f"http://127.0.0.1:{node.server.http_port}"
        async with httpx.AsyncClient(base_url=url, timeout=60) as http, asyncio.timeout(120):
            yield http
    finally:
        await node.stop(0)


def write_whole(file: Path, text: str) -> None:
    """At once: who looks meanwhile finds what was there before, and no empty file."""
    new = file.with_suffix(".new")
    new.write_text(text)
    new.replace(file)


async def status_with(http: httpx.AsyncClient, key: str) -> int:
    answer = await http.get("/v1/models", headers={"authorization": f"Bearer {key}"})
    return answer.status_code


async def test_keys_that_change_in_their_file_hold_without_a_restart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_node, "SECRETS_PERIOD_S", 0.01)
    keys = tmp_path / "keys"
    keys.write_text("old\n")
    config = override(CONFIG, {"gateway.api_keys": [f"file:{keys}"]})

    async with listening(GatewayNode(config, find_model(config.model))) as http:
        assert [await status_with(http, key) for key in ("old", "new")] == [200, 401]
        keys.unlink()  # what was read last holds
        await asyncio.sleep(0.05)
        assert await status_with(http, "old") == 200
        write_whole(keys, "new\n")
        while await status_with(http, "new") != 200:
            await asyncio.sleep(0.01)
        assert await status_with(http, "old") == 401


async def test_a_running_gateway_goes_by_other_settings_at_once() -> None:
    node = GatewayNode(CONFIG, find_model(CONFIG.model))
    other = {"gateway.operator_keys": ["k"], "gateway.no_replica_grace_s": 0.01,
             "gateway.policy": "round-robin", "prefill.replicas": 5}  # fmt: skip

    async with listening(node) as http:
        node.reconfigure(override(CONFIG, other))

        assert await status_with(http, "none") == 401
        assert await status_with(http, "k") == 200
        key = {"authorization": "Bearer k"}
        body = {"prompt": "a", "max_tokens": 1}
        refused = await http.post("/v1/completions", json=body, headers=key)
        assert refused.status_code == 503  # after another patience than the 60 s of the start
        missing = (await http.get("/ready")).json()["missing"]
        assert {it["role"]: it["wanted"] for it in missing}["prefill"] == 5


async def test_a_running_gateway_survives_a_change_while_its_keys_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_node, "SECRETS_PERIOD_S", 0.01)
    keys, others = tmp_path / "keys", tmp_path / "others"
    keys.write_text("a")
    config = override(CONFIG, {"gateway.api_keys": [f"file:{keys}"]})

    async with listening(node := GatewayNode(config, find_model(config.model))) as http:

        async def wanted() -> int:
            missing = (await http.get("/ready")).json()["missing"]
            return int({it["role"]: it["wanted"] for it in missing}["prefill"])

        keys.unlink()
        node.reconfigure(override(config, {"prefill.replicas": 5}))
        assert (await wanted(), await status_with(http, "a")) == (5, 200)

        other = {"gateway.api_keys": [f"file:{others}"], "prefill.replicas": 6}
        node.reconfigure(override(config, other))
        assert (await wanted(), await status_with(http, "a")) == (5, 200)
        write_whole(keys, "b")  # "a" is taken back, though more was asked for than can be
        while await status_with(http, "a") != 401:
            await asyncio.sleep(0.01)
        assert "others" in caplog.text

        write_whole(others, "c")
        while await status_with(http, "c") != 200:
            await asyncio.sleep(0.01)
        assert (await wanted(), await status_with(http, "b")) == (6, 401)


async def test_keys_read_for_a_configuration_that_has_been_replaced_are_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gateway_node, "SECRETS_PERIOD_S", 0.01)
    (tmp_path / "keys").write_text("old")
    config = override(CONFIG, {"gateway.api_keys": [f"file:{tmp_path}/keys"]})
    is_replaced, is_checked = Event(), Event()
    reads: list[Event] = []
    read = with_secrets

    def slow(gateway: GatewayConfig) -> GatewayConfig:
        found = read(gateway)
        if current_thread() is not main_thread():  # the gateway looks again
            reads.append(is_checked if reads else is_replaced)
            reads[-1].wait(60)
        return found

    monkeypatch.setattr(gateway_node, "with_secrets", slow)
    async with listening(node := GatewayNode(config, find_model(config.model))) as http:
        try:
            while not reads:
                await asyncio.sleep(0.01)
            node.reconfigure(override(config, {"gateway.api_keys": ["other"]}))
            is_replaced.set()
            while len(reads) < 2:
                await asyncio.sleep(0.01)
            assert [await status_with(http, key) for key in ("old", "other")] == [401, 200]
        finally:
            is_checked.set()


async def test_a_running_gateway_keeps_the_secret_that_blocks_are_named_by(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(gateway_node, "SECRETS_PERIOD_S", 0.01)
    (tmp_path / "secret").write_text("first")
    config = override(CONFIG, {"gateway.cache_secret": f"file:{tmp_path}/secret"})

    async with listening(GatewayNode(config, find_model(config.model))):
        write_whole(tmp_path / "secret", "second")
        while "until gateways are started anew" not in caplog.text:
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.05)

    assert caplog.text.count("until gateways are started anew") == 1
    assert "keys or settings have changed" not in caplog.text


class Plans(OneStarts):
    """A registry with a planner, which hears a gateway once and is away from then on."""

    def __init__(self) -> None:
        super().__init__()
        self.heard: list[tuple[Epoch, TrafficReport]] = []

    async def report_traffic(self, gateway: Epoch, report: TrafficReport) -> PlannerReply:
        if self.heard:
            raise ConnectionError
        self.heard.append((gateway, report))
        return PlannerReply({"prefill": 7, "decode": 1}, (gauge("baton_planner_x", "", 3.0),))

    async def explain_planner(self) -> dict[str, Any]:
        return {"is_enabled": True, "gateways_heard": len(self.heard)}


async def test_a_gateway_reports_to_the_planner_while_there_is_one_and_tells_what_it_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(planner_link, "REPORTS_S", 0.01)
    node, registry = GatewayNode(CONFIG, find_model(CONFIG.model)), Plans()
    await node.start(registry, planner=registry)
    url = f"http://127.0.0.1:{node.server.admin_port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as http, asyncio.timeout(120):
            assert (await http.get("/debug/planner")).json() == {"is_enabled": False}
            assert not registry.heard
            node.reconfigure(override(CONFIG, {"planner.enabled": True}))
            while not registry.heard:
                await asyncio.sleep(0.01)
            told = (await http.get("/debug/planner")).json()
            page = (await http.get("/metrics")).text
            node.reconfigure(override(CONFIG, {"planner.nodes": "kuberay"}))
            followed = (await http.get("/metrics")).text
            node.reconfigure(CONFIG)
            after = (await http.get("/metrics")).text
    finally:
        await node.stop(0)

    assert told == {"is_enabled": True, "gateways_heard": 1}
    assert 'baton_gateway_planned_replicas{model="demo",role="prefill"} 7' in page
    assert 'baton_gateway_wanted_replicas{model="demo",role="prefill"} 2' in page
    assert 'baton_gateway_ready_replicas{model="demo",role="prefill"} 0' in page
    assert 'baton_planner_x{model="demo"} 3.0' in page
    assert 'baton_gateway_followed_groups{model="demo"} 1' in followed
    assert "baton_gateway_followed_groups" not in page + after
    assert "planned_replicas" not in after and "baton_planner" not in after


async def test_what_is_kept_lies_below_the_users_cache_unless_a_folder_is_named(
    user_cache: Path, tmp_path: Path
) -> None:
    named = override(CONFIG, {"gateway.storage.folder": str(tmp_path / "named")})
    for config in (CONFIG, named):
        async with listening(GatewayNode(config, find_model(config.model))):
            pass
    assert (user_cache / "baton" / "storage" / "of-demo").is_dir()
    assert (tmp_path / "named").is_dir() and not any((tmp_path / "named").iterdir())

    several = override(CONFIG, {"gateway.replicas": 2})
    warning = apart(several, num_nodes=2)
    assert warning is not None and "gateway.storage.folder" in warning
    shared = override(several, {"gateway.storage.folder": "/shared"})
    assert (apart(CONFIG, 2), apart(several, 1), apart(shared, 2)) == (None, None, None)
