"""`baton serve` as users meet it: Ray, separate processes, kill -9."""

from __future__ import annotations

import asyncio
import inspect
import random
import textwrap
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from uuid import uuid4

import grpc
import httpx
import msgspec
import openai
import pytest
from tests.live_server import Server, start_server, stop_server

from baton.client.client import BatonClient
from baton.platform.config.deployment import DeploymentConfig
from baton.platform.machine.core_share import share_of_cores
from baton.platform.models.model_folder import find_model
from baton.proto import replica_pb2 as pb
from baton.proto.replica_pb2_grpc import ReplicaStub

pytestmark = pytest.mark.cluster

CODE = inspect.getsource(textwrap)
SHORT = 'def add(a, b):\n    """Return the sum'


def prompts(count: int, chars: int) -> list[str]:
    """Different pieces of Python, long enough to be prefilled remotely."""
    return [CODE[number * 97 : number * 97 + chars] for number in range(count)]


async def complete(
    client: openai.AsyncOpenAI,
    prompt: str,
    max_tokens: int = 60,
    has_begun: asyncio.Event | None = None,
) -> str:
    """Greedy and streamed, so that a broken stream would be noticed."""
    text = ""
    finish_reason = None
    stream = await client.completions.create(
        model="demo", prompt=prompt, max_tokens=max_tokens, temperature=0, stream=True,
        extra_body={"ignore_eos": True},
    )  # fmt: skip
    async for chunk in stream:
        if has_begun is not None:
            has_begun.set()
        if chunk.choices:
            text += chunk.choices[0].text
            finish_reason = chunk.choices[0].finish_reason or finish_reason
    assert finish_reason == "length"
    return text


def wait_for(condition: Callable[[], Any], limit_s: float = 180.0) -> None:
    deadline = time.monotonic() + limit_s
    while True:
        with suppress(httpx.HTTPError):
            if condition():
                return
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.1)


def is_prefilled_apart(url: str) -> bool:
    """Whether the KV of a prompt that is new came from a prefill replica: for a moment after both
    are ready, a gateway may know the decode replica alone, or find it quicker."""
    body = {
        "prompt": f"def add_{uuid4().hex}(a, b):\n" * 40, "max_tokens": 8, "ignore_eos": True,
        "receipt": True,
    }  # fmt: skip
    answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
    answer.raise_for_status()
    assert answer.json()["usage"]["completion_tokens"] == 8
    receipt: dict[str, Any] = answer.json()["baton"]
    return bool(receipt["prefill_replica"].startswith("prefill-") and receipt["kv_bytes"])


@pytest.fixture
def client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def test_the_kv_of_a_prompt_travels_between_two_processes(server: Server) -> None:
    body = {"prompt": CODE[:1000], "max_tokens": 5, "temperature": 0, "receipt": True}

    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()

    receipt = answer["baton"]
    assert receipt["prefill_replica"].startswith("prefill-")
    assert receipt["decode_replica"].startswith("decode-")
    assert receipt["kv_bytes"] > 0
    assert receipt["computed_tokens"] == receipt["prompt_tokens"] + 4
    assert server.leaks()["violations"] == []
    assert server.replica_process("Prefill").pid != server.replica_process("Decode").pid


def test_replicas_refuse_strangers_though_nobody_has_configured_anything(server: Server) -> None:
    for rows in server.status()["pools"].values():
        assert rows[0]["is_reachable"]
        with (
            grpc.insecure_channel(rows[0]["address"]) as channel,
            pytest.raises(grpc.RpcError) as refused,
        ):
            ReplicaStub(channel).Inspect(pb.InspectRequest(), timeout=120)
        assert refused.value.code() is grpc.StatusCode.UNAUTHENTICATED


def test_serve_says_a_line_a_stage_where_there_is_no_terminal(server: Server) -> None:
    said = "".join(server.output)

    for stage in ("starting Ray", ": importing", "gateway listening on"):
        assert stage in said


def test_the_openai_client_chats(server: Server) -> None:
    client = openai.OpenAI(base_url=f"{server.url}/v1", api_key="none")

    assert [model.id for model in client.models.list()] == ["demo"]
    stream = client.chat.completions.create(
        model="demo",
        messages=[{"role": "user", "content": "Write the function `add`."}],
        max_tokens=20, temperature=0, stream=True, stream_options={"include_usage": True},
    )  # fmt: skip
    chunks = list(stream)

    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.completion_tokens <= 20


def test_the_sdk_generates_what_http_does(server: Server) -> None:
    body = {"prompt": SHORT, "max_tokens": 16, "temperature": 0}
    over_http = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()

    with BatonClient(server.grpc_target) as sdk:
        result = sdk.generate(SHORT, max_tokens=16, temperature=0.0)

    assert result.text == over_http["choices"][0]["text"]
    assert result.usage.output_tokens == 16


@pytest.mark.wide
async def test_kill_9_of_the_prefill_replica_costs_no_client_a_token(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    wanted = prompts(6, chars=2500)
    epoch = server.epoch("prefill")
    assert epoch is not None

    answering = [asyncio.create_task(complete(client, prompt)) for prompt in wanted]
    await asyncio.sleep(0.3)
    server.replica_process("Prefill").kill()
    answers = await asyncio.gather(*answering)

    assert answers == [await complete(client, prompt) for prompt in wanted]
    await asyncio.to_thread(wait_for, lambda: server.epoch("prefill") not in (None, epoch))
    await asyncio.to_thread(wait_for, lambda: is_prefilled_apart(server.url))


async def test_kill_9_of_the_decode_replica_costs_no_client_a_token(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    wanted = prompts(6, chars=600)
    undisturbed = [await complete(client, prompt, max_tokens=200) for prompt in wanted]
    epoch = server.epoch("decode")
    assert epoch is not None

    victim, has_begun = server.replica_process("Decode"), asyncio.Event()
    answering = [asyncio.create_task(complete(client, prompt, 200, has_begun)) for prompt in wanted]
    await has_begun.wait()
    victim.kill()
    answers = await asyncio.gather(*answering)

    assert answers == undisturbed
    await asyncio.to_thread(wait_for, lambda: server.epoch("decode") not in (None, epoch))


async def test_two_hundred_requests_half_of_them_cancelled_leave_no_block_leased(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    rng = random.Random(1)

    async def one(number: int) -> None:
        prompt = CODE[number * 31 : number * 31 + 100 + 40 * (number % 10)]
        answering = asyncio.create_task(complete(client, prompt, max_tokens=24))
        if number % 2:
            await asyncio.sleep(rng.random() * 4)
            answering.cancel()
        with suppress(asyncio.CancelledError):
            await answering

    await asyncio.gather(*(one(number) for number in range(200)))

    def nothing_is_held() -> bool:
        rows = server.leaks()["replicas"]
        return len(rows) == 2 and not any(
            r["leased"] or r["live"] or r["quarantined"] for r in rows
        )

    await asyncio.to_thread(wait_for, nothing_is_held)
    assert server.leaks()["violations"] == []
    for pool in server.status()["pools"].values():
        [metrics] = [row["metrics"] for row in pool if row["is_reachable"]]  # not those killed
        assert metrics["tokens_sampled_total"] == (
            metrics["tokens_delivered_total"] + metrics["tokens_discarded_total"]
        )


@pytest.mark.wide  # it starts a cluster
def test_a_model_that_cannot_be_served_is_refused_by_name(tmp_path: Path) -> None:
    for file in find_model("demo").iterdir():
        (tmp_path / file.name).symlink_to(file)
    (tmp_path / "config.json").unlink()
    config = msgspec.json.decode((find_model("demo") / "config.json").read_bytes())
    config["architectures"] = ["NoSuchModel"]
    (tmp_path / "config.json").write_bytes(msgspec.json.encode(config))

    with pytest.raises(AssertionError, match="'NoSuchModel' is not supported; known are Llama"):
        start_server(str(tmp_path))


@pytest.mark.wide  # it starts a cluster
def test_a_config_alone_is_enough_to_serve_dummy_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BATON_CPU_KERNELS", "torch")  # of two ways to compute, the other one
    config = find_model("draft") / "config.json"
    (tmp_path / "config.json").symlink_to(config)
    body = {"prompt": "no tokenizer " * 9, "max_tokens": 5, "ignore_eos": True, "receipt": True}

    server = start_server(str(tmp_path), "--load-format", "dummy")
    try:
        answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=60).json()
        engines = [row["engine"] for rows in server.status()["pools"].values() for row in rows]
    finally:
        status = stop_server(server)

    share = share_of_cores(DeploymentConfig(), num_left=1)  # for the gateway, beside OpenMP
    assert [(engine["kernels"], engine["num_threads"]) for engine in engines] == [
        ("torch", share),
        ("torch", share),
    ]
    assert answer["usage"]["prompt_tokens"] == len("no tokenizer " * 9)
    assert answer["baton"]["kv_bytes"] > 0  # both replicas made up the same weights
    assert status == 0
