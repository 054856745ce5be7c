"""KV that left the device comes back from each tier: the same tokens, and nothing computed twice.

Tiny random float32 checkpoints in pools so small that every prompt pushes out the one before.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.in_process_fleet import Fleet, running_fleet
from tests.kv_transfer.tiers.blocks import becomes_true
from tests.services.test_pulling import ask_at, at
from tests.tiny_checkpoints import FAMILIES, VOCAB_SIZE, transformers_greedy

from baton.core.chaos import POINTS, Fault
from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.decode_service.worker import DecodeWorker
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.kv_transfer.tiers.tiers import Tiers
from baton.platform.replica.replica import Replica
from baton.prefill_service.worker import PrefillWorker

BLOCK_SIZE = 4
NUM_TOKENS = 6
SAMPLING = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)
PROMPT_LEN = 61
FULL_TOKENS = (PROMPT_LEN - 1) // BLOCK_SIZE * BLOCK_SIZE
"""Of a prompt, those that may be found rather than computed."""


@pytest.fixture(scope="module", params=["llama", "deepseek v3.2"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(5)
    return [[rng.randrange(2, VOCAB_SIZE) for _ in range(PROMPT_LEN)] for _ in range(5)]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    return transformers_greedy(folder, prompts, NUM_TOKENS)


def small_engines(folder: Path, *, num_blocks: int = 40) -> Callable[[Role], Engine]:
    """Room for two prompts and no more."""
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks),
        scheduler=SchedulerConfig(prefill_chunk=16),
    )
    return lambda role: assemble_engine(folder, config, device="cpu")


def tiers_in(path: Path) -> dict[str, dict[str, Any]]:
    """By the tier that prompts must come back from: settings."""
    block_gib = 4096 / (1 << 30)
    host, disk = {"tiers.host.gib": 1.0}, {"tiers.disk.folder": str(path / "disk")}
    store = {"tiers.store.url": str(path / "store")}
    return {
        "host": host,
        "disk": disk,
        "store": store,
        "host and disk": {"tiers.host.gib": 20 * block_gib, **disk},
    }


@asynccontextmanager
async def fleet_with(
    folder: Path, settings: dict[str, Any], *, num_prefill: int = 0
) -> AsyncIterator[Fleet]:
    changes = {"tiers.min_tokens": BLOCK_SIZE, "tiers.deadline_s": 30.0, **settings}
    make_engine = small_engines(folder)
    async with running_fleet(prefill=num_prefill, make_engine=make_engine, changes=changes) as it:
        yield it


async def written_back(fleet: Fleet) -> None:
    """Wait until every block that has a name is in a tier, and a prefill replica, which is small,
    has been told that what it sent has come: until then it would refuse the next prompt."""
    async with asyncio.timeout(60):
        for replica in fleet.replicas.values():
            while await replica.worker.core.thread.call(partial(_is_writing, replica)):
                await asyncio.sleep(0.002)
    await fleet.assert_nothing_is_held(timeout_s=60)


def _is_writing(replica: Replica) -> bool:
    """On its engine's thread: any other could see a block between waiting, held and put."""
    tiers = tiers_of(replica)
    is_waiting = any(v for name, v in tiers.metrics().items() if "_waiting" in name)
    return is_waiting or bool(tiers.lease_ids)


def tiers_of(replica: Replica) -> Tiers:
    assert isinstance(replica.worker, DecodeWorker | PrefillWorker)
    assert replica.worker.core.kv.tiers is not None
    return replica.worker.core.kv.tiers


def total(fleet: Fleet, name: str) -> float:
    return sum(replica.worker.metrics().get(name, 0) for replica in fleet.replicas.values())


@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+1D"])
@pytest.mark.parametrize("tier", ["host", "disk", "store", "host and disk"])
async def test_prompts_that_left_the_device_are_swapped_in_and_not_computed_again(
    folder: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    tmp_path: Path,
    tier: str,
    num_prefill: int,
) -> None:
    async with fleet_with(folder, tiers_in(tmp_path)[tier], num_prefill=num_prefill) as fleet:
        cold = []
        for prompt in prompts:
            cold.append(await fleet.ask(prompt, SAMPLING))
            await written_back(fleet)
        returning = []
        for prompt in prompts:
            returning.append(await fleet.ask(prompt, SAMPLING))
            await written_back(fleet)

        assert [answer.tokens for answer in cold] == expected
        assert [answer.tokens for answer in returning] == expected
        for answer in returning:
            assert answer.receipt.cached_tokens == FULL_TOKENS
            num_first = PROMPT_LEN - FULL_TOKENS
            assert answer.receipt.computed_tokens == num_first + NUM_TOKENS - 1
        assert total(fleet, "tier_tokens_brought_in_total") >= 3 * FULL_TOKENS
        assert total(fleet, "tier_write_back_missed_total") == 0
        await fleet.assert_nothing_is_held()


async def test_a_receipt_says_how_much_came_from_which_tier(
    folder: Path, prompts: list[list[int]], tmp_path: Path
) -> None:
    async with fleet_with(folder, tiers_in(tmp_path)["disk"]) as fleet:
        for prompt in prompts:
            await fleet.ask(prompt, SAMPLING)
            await written_back(fleet)

        receipt = (await fleet.ask(prompts[0], SAMPLING)).receipt

        assert receipt.pulled_tokens == FULL_TOKENS
        assert receipt.cached_tokens == FULL_TOKENS
        assert f"swapped in {FULL_TOKENS} tokens from disk" in receipt.notes
        assert receipt.transport == "disk"


async def test_what_the_decode_replica_swaps_in_while_it_asks_need_not_be_sent(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    async with fleet_with(folder, tiers_in(tmp_path)["host"], num_prefill=1) as fleet:
        for prompt in prompts:
            cold = await fleet.ask(prompt, SAMPLING)
            await written_back(fleet)

        answer = await fleet.ask(prompts[0], SAMPLING)

        assert answer.tokens == expected[0]
        assert cold.receipt.kv_bytes and answer.receipt.kv_bytes
        num_blocks = -(-PROMPT_LEN // BLOCK_SIZE)
        assert answer.receipt.kv_bytes == cold.receipt.kv_bytes // num_blocks
        assert answer.receipt.pulled_tokens == FULL_TOKENS
        assert answer.receipt.prefill_replica and answer.receipt.transport not in ("", "host")


async def test_another_salt_finds_nothing(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    async with fleet_with(folder, tiers_in(tmp_path)["host"]) as fleet:
        await fleet.ask(prompts[0], SAMPLING, salt=b"one")
        await written_back(fleet)

        answer = await fleet.ask(prompts[0], SAMPLING, salt=b"two")

        assert answer.tokens == expected[0]
        assert answer.receipt.cached_tokens == answer.receipt.pulled_tokens == 0
        assert total(fleet, 'tier_hits_total{tier="host"}') == 0


async def test_a_new_replica_finds_on_disk_what_the_old_one_left(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    settings, blocks = tiers_in(tmp_path)["disk"], 'tier_blocks{tier="disk"}'
    async with fleet_with(folder, settings) as fleet:
        await fleet.ask(prompts[0], SAMPLING)
        await written_back(fleet)
        left = total(fleet, blocks)
        assert left

    async with fleet_with(folder, settings) as fleet:
        await asyncio.to_thread(becomes_true, lambda: total(fleet, blocks) == left)
        answer = await fleet.ask(prompts[0], SAMPLING)

        assert answer.tokens == expected[0]
        assert answer.receipt.pulled_tokens == FULL_TOKENS


async def test_a_second_replica_finds_in_the_store_what_the_first_wrote(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    settings = tiers_in(tmp_path)["store"]
    async with fleet_with(folder, settings) as one, fleet_with(folder, settings) as two:
        await one.ask(prompts[0], SAMPLING)
        await written_back(one)

        answer = await two.ask(prompts[0], SAMPLING)

        assert answer.tokens == expected[0]
        assert answer.receipt.pulled_tokens == FULL_TOKENS


async def test_a_peer_lends_what_has_left_its_device_too(
    folder: Path, prompts: list[list[int]], expected: list[list[int]]
) -> None:
    settings = {"tiers.host.gib": 1.0, "tiers.min_tokens": BLOCK_SIZE, "tiers.deadline_s": 30.0}
    make_engine = small_engines(folder)
    async with running_fleet(
        prefill=0, decode=2, make_engine=make_engine, changes=settings
    ) as fleet:
        for prompt in prompts:
            await ask_at(fleet, "decode-1", prompt, SAMPLING, tenant="whose it is")
            await written_back(fleet)

        source = at(fleet, "decode-1")
        told = await ask_at(
            fleet, "decode-2", prompts[0], SAMPLING, source=source, tenant="whose it is"
        )

        assert told.tokens == expected[0]
        assert told.receipt.pulled_tokens == told.receipt.cached_tokens == FULL_TOKENS
        lending = fleet.replicas[ReplicaId("decode-1")].worker.metrics()
        assert lending["tier_tokens_brought_in_total"] == FULL_TOKENS
        for engine in fleet.engines.values():
            assert engine.pool.accounts.num_held_by_tenant.keys() == {"whose it is"}
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+1D"])
async def test_broken_files_are_noticed_dropped_and_computed_instead(
    folder: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    tmp_path: Path,
    num_prefill: int,
) -> None:
    settings = tiers_in(tmp_path)["disk"]
    async with fleet_with(folder, settings, num_prefill=num_prefill) as fleet:
        for prompt in prompts:
            await fleet.ask(prompt, SAMPLING)
            await written_back(fleet)
        rng = random.Random(2)
        for path in (tmp_path / "disk").rglob("*.kv"):
            data = bytearray(path.read_bytes())
            if rng.random() < 0.3:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
                path.write_bytes(data)

        answers = [await fleet.ask(prompt, SAMPLING) for prompt in prompts]

        assert [answer.tokens for answer in answers] == expected
        assert total(fleet, 'tier_corrupt_total{tier="disk"}') > 0
        await fleet.assert_nothing_is_held()


async def test_bytes_that_go_bad_in_host_memory_are_noticed_on_arrival(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    async with fleet_with(folder, tiers_in(tmp_path)["host"]) as fleet:
        for prompt in prompts:
            await fleet.ask(prompt, SAMPLING)
            await written_back(fleet)
        (replica,) = fleet.replicas.values()
        _break_all(tiers_of(replica).stack)

        answer = await fleet.ask(prompts[0], SAMPLING)

        assert answer.tokens == expected[0]
        assert answer.receipt.cached_tokens == answer.receipt.pulled_tokens == 0
        assert any("nothing brought in" in note for note in answer.receipt.notes)
        assert total(fleet, "pieces_corrupt_total") > 0
        async with asyncio.timeout(60):
            while not total(fleet, 'tier_corrupt_total{tier="host"}'):
                await asyncio.sleep(0.002)
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize(
    "seed", [pytest.param(seed, marks=[pytest.mark.wide] if seed > 1 else []) for seed in range(4)]
)
@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+1D"])
async def test_under_faults_of_every_kind_the_answers_are_right(
    folder: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    tmp_path: Path,
    num_prefill: int,
    seed: int,
) -> None:
    rules = [
        {"at": point, "fault": str(fault), "rate": 0.1, "delay_s": 0.01}
        for point in ("tier.read", "tier.write")
        for fault in sorted(POINTS[point] - {Fault.KILL})
    ]
    settings = {
        **tiers_in(tmp_path)["host and disk"],
        "chaos.enabled": True,
        "chaos.seed": seed,
        "chaos.rules": rules,
    }
    async with fleet_with(folder, settings, num_prefill=num_prefill) as fleet:
        num_rounds, injected = 0, set[str]()
        while num_rounds < 3 or injected != {"tier.read", "tier.write"}:
            answers = await asyncio.gather(*(fleet.ask(prompt, SAMPLING) for prompt in prompts))

            assert [answer.tokens for answer in answers] == expected
            num_rounds += 1
            injected = {at for replica in fleet.replicas.values() for at, _ in _injected(replica)}
        await written_back(fleet)
        await fleet.assert_nothing_is_held()


def _injected(replica: Replica) -> Iterable[tuple[str, Fault]]:
    assert replica.chaos is not None
    return replica.chaos.injected


def _break_all(stack: Any) -> None:
    """Flip a bit of every block in host memory."""
    records = stack._levels[0].tier._records
    for name, record in list(records.items()):
        payload = bytearray(record.payload)
        payload[len(payload) // 2] ^= 16
        records[name] = type(record)(name, record.checksums, memoryview(payload))


async def test_many_returning_conversations_at_once(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], tmp_path: Path
) -> None:
    async with fleet_with(folder, tiers_in(tmp_path)["host and disk"]) as fleet:
        for _ in range(3):
            answers = await asyncio.gather(*(fleet.ask(prompt, SAMPLING) for prompt in prompts))

            assert [answer.tokens for answer in answers] == expected
            await written_back(fleet)
        await fleet.assert_nothing_is_held()
