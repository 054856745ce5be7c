"""KV caches of few bits through the whole data plane: the way to an answer must not change it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.in_process_fleet import Fleet, running_fleet
from tests.tiny_checkpoints import FAMILIES, VOCAB_SIZE

from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine

SAMPLING = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)
BLOCK_SIZE = 4


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    shared = [rng.randrange(2, VOCAB_SIZE) for _ in range(20)]
    return [shared + [rng.randrange(2, VOCAB_SIZE) for _ in range(n)] for n in (1, 7, 30, 44)]


def engines(
    folder: Path, kv_dtype: dict[Role, str], *, chunk: int | None = None, num_blocks: int = 256
) -> Callable[[Role], Engine]:
    def make(role: Role) -> Engine:
        cache: dict[str, Any] = {"block_size": BLOCK_SIZE, "kv_dtype": kv_dtype[role]}
        config = EngineConfig(
            cache=CacheConfig(num_blocks=num_blocks, **cache),
            scheduler=SchedulerConfig(prefill_chunk=chunk),
        )
        return assemble_engine(folder, config, device="cpu")

    return make


def both(kv_dtype: str) -> dict[Role, str]:
    return {Role.PREFILL: kv_dtype, Role.DECODE: kv_dtype}


async def answers(fleet: Fleet, prompts: list[list[int]], *, at_once: bool) -> list[list[int]]:
    if at_once:
        found = await asyncio.gather(*(fleet.ask(prompt, SAMPLING) for prompt in prompts))
        return [answer.tokens for answer in found]
    return [(await fleet.ask(prompt, SAMPLING)).tokens for prompt in prompts]


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
async def test_chunks_batches_prefix_hits_preemption_and_handoffs_change_no_token(
    folder: Path, prompts: list[list[int]], kv_dtype: str
) -> None:
    whole = engines(folder, both(kv_dtype))
    async with running_fleet(prefill=0, make_engine=whole) as alone:
        expected = await answers(alone, prompts, at_once=False)
        assert await answers(alone, prompts, at_once=True) == expected  # on prefix hits
    squeezed = engines(folder, both(kv_dtype), chunk=7, num_blocks=24)
    async with running_fleet(prefill=0, make_engine=squeezed) as alone:
        [engine] = alone.engines.values()
        for _ in range(10):  # a request may have ended before the last of the others came
            assert await answers(alone, prompts, at_once=True) == expected
            if engine.stats.num_preempted:
                break
        assert engine.stats.num_preempted > 0
    chunked = engines(folder, both(kv_dtype), chunk=7)
    async with running_fleet(prefill=1, make_engine=chunked) as apart:
        first = await apart.ask(prompts[-1], SAMPLING)
        assert first.tokens == expected[-1]
        assert first.receipt.kv_bytes > 0
        assert await answers(apart, prompts, at_once=True) == expected
        await apart.assert_nothing_is_held()


async def test_eight_bits_take_less_room_and_less_of_the_wire(
    folder: Path, prompts: list[list[int]]
) -> None:
    kv_bytes = {}
    for kv_dtype in ("auto", "int8"):
        async with running_fleet(make_engine=engines(folder, both(kv_dtype))) as fleet:
            kv_bytes[kv_dtype] = (await fleet.ask(prompts[-1], SAMPLING)).receipt.kv_bytes

    # A quarter of float32 but for scales and padding, which are much where heads are so narrow.
    assert kv_bytes["int8"] <= kv_bytes["auto"] / 2


async def test_kv_is_narrowed_on_its_way_to_a_decode_replica_that_keeps_eight_bits(
    folder: Path, prompts: list[list[int]]
) -> None:
    dtypes = {Role.PREFILL: "auto", Role.DECODE: "int8"}
    async with running_fleet(make_engine=engines(folder, dtypes)) as fleet:
        answer = await fleet.ask(prompts[-1], SAMPLING)

        assert len(answer.tokens) == SAMPLING.max_tokens
        assert answer.receipt.prefill_replica and answer.receipt.kv_bytes > 0
        assert answer.receipt.notes == ()
        await fleet.assert_nothing_is_held()


async def test_tokens_behind_the_last_full_block_are_computed_again_by_who_decodes(
    folder: Path, prompts: list[list[int]]
) -> None:
    short, long = prompts[0][: BLOCK_SIZE - 1], prompts[1][: 5 * BLOCK_SIZE + 2]
    async with running_fleet(prefill=0, make_engine=engines(folder, both("int4"))) as alone:
        expected = await answers(alone, [short, long], at_once=False)
    async with running_fleet(make_engine=engines(folder, both("int4"))) as fleet:
        assert await answers(fleet, [short, long], at_once=False) == expected
        receipt = (await fleet.ask(long, replace(SAMPLING, max_tokens=1))).receipt
        await fleet.assert_nothing_is_held()

    assert receipt.prefill_replica and receipt.notes == ()


async def test_what_is_kept_in_four_bits_is_not_handed_to_who_keeps_other_kv(
    folder: Path, prompts: list[list[int]]
) -> None:
    dtypes = {Role.PREFILL: "auto", Role.DECODE: "int4"}
    async with running_fleet(prefill=0, make_engine=engines(folder, both("int4"))) as alone:
        expected = await answers(alone, prompts, at_once=False)
    async with running_fleet(make_engine=engines(folder, dtypes)) as fleet:
        answer = await fleet.ask(prompts[-1], SAMPLING)

        assert answer.tokens == expected[-1]  # computed where it is decoded
        assert any("dtype" in note for note in answer.receipt.notes)
        await fleet.assert_nothing_is_held()
