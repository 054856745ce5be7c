"""A prefill replica on two ranks beside a decode replica on one, as `baton serve` starts them."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator

import httpx
import openai
import psutil
import pytest
from tests.cluster.test_live_cluster import CODE, complete, prompts, wait_for
from tests.live_server import Server, start_server, stop_wholly

from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import EngineConfig
from baton.engine.request.request import Request
from baton.gateway.text.served_model import ServedModel
from baton.platform.models.model_folder import find_model

pytestmark = [pytest.mark.cluster, pytest.mark.wide]

NUM_TOKENS = 24
NAMED_ACTORS = """
import json, ray, sys
ray.init(address=sys.argv[1], log_to_driver=False, logging_level="ERROR")
print(json.dumps(ray.util.list_named_actors(all_namespaces=True)))
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    config = tmp_path_factory.mktemp("config") / "baton.yaml"
    config.write_text("prefill: {parallel: {tensor: 2}}\n")
    server = start_server("-f", str(config))
    yield server
    stop_wholly(server)


@pytest.fixture
def client(server: Server) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0)


def follower(server: Server) -> psutil.Process | None:
    """The rank of the prefill replica that follows."""
    found = server.processes_called("ray::RankActor")
    assert len(found) < 2
    return found[0] if found else None


def named_actors(server: Server) -> list[dict[str, str]]:
    """As Ray's dashboard lists them."""
    command = [sys.executable, "-c", NAMED_ACTORS, server.ray_address()]
    own = server.raylet().environ()
    run = subprocess.run(command, env=own, capture_output=True, text=True, check=False)
    assert run.returncode == 0, run.stderr
    found: list[dict[str, str]] = json.loads(run.stdout.splitlines()[-1])
    return found


def greedy_on_one_rank(text: str) -> list[int]:
    folder = find_model("demo")
    tokens = ServedModel.load(folder, "demo").tokenizer.encode(text, add_special_tokens=True)
    engine = assemble_engine(folder, EngineConfig(), dtype="float32", device="cpu")
    sampling = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS, ignore_eos=True)
    request = Request("one", tokens, sampling=sampling)
    engine.add(request)
    while engine.has_work:
        engine.step()
    return request.output


def test_what_two_ranks_prefilled_one_rank_continues(server: Server) -> None:
    body = {
        "prompt": CODE[:1500], "max_tokens": NUM_TOKENS, "temperature": 0, "ignore_eos": True,
        "receipt": True, "return_token_ids": True,
    }  # fmt: skip

    answer = httpx.post(f"{server.url}/v1/completions", json=body, timeout=120).json()

    assert answer["baton"]["kv_bytes"] > 0
    assert answer["choices"][0]["token_ids"] == greedy_on_one_rank(CODE[:1500])
    assert server.leaks()["violations"] == []


def test_a_rank_has_a_name_in_ray_that_tells_its_replica(server: Server) -> None:
    [prefill] = server.status()["pools"]["prefill"]

    names = [actor["name"] for actor in named_actors(server) if actor["namespace"] == "baton"]

    assert names == [f"baton:{prefill['replica']}:process-1"]


async def test_a_rank_that_is_killed_takes_its_replica_along_and_costs_no_client_a_token(
    server: Server, client: openai.AsyncOpenAI
) -> None:
    wanted = prompts(4, chars=2500)
    epoch, rank = server.epoch("prefill"), follower(server)
    assert epoch is not None and rank is not None
    lead = server.replica_process("Prefill")

    answering = [asyncio.create_task(complete(client, prompt)) for prompt in wanted]
    await asyncio.sleep(0.3)
    rank.kill()
    answers = await asyncio.gather(*answering)

    assert answers == [await complete(client, prompt) for prompt in wanted]
    await asyncio.to_thread(wait_for, lambda: server.epoch("prefill") not in (None, epoch))
    await asyncio.to_thread(wait_for, lambda: not lead.is_running())
    new = follower(server)
    assert new is not None and new.pid != rank.pid
    assert server.leaks()["violations"] == []


async def test_a_rank_that_falls_silent_is_taken_for_gone(server: Server) -> None:
    epoch, rank = server.epoch("prefill"), follower(server)
    assert epoch is not None and rank is not None

    rank.suspend()

    await asyncio.to_thread(wait_for, lambda: server.epoch("prefill") not in (None, epoch))
    await asyncio.to_thread(wait_for, lambda: not rank.is_running())
