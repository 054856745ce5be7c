"""Quantised weights through the whole data plane: the way to an answer must not change it."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.in_process_fleet import Fleet, running_fleet
from tests.tiny_checkpoints import FAMILIES, VOCAB_SIZE

from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine

SAMPLING = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


@pytest.fixture(scope="module", params=["llama", "gemma3"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    shared = [rng.randrange(2, VOCAB_SIZE) for _ in range(20)]
    return [shared + [rng.randrange(2, VOCAB_SIZE) for _ in range(n)] for n in (1, 7, 30, 44)]


def engines(
    folder: Path, quantize: str, *, chunk: int | None = None, prefix_caching: bool = True
) -> Callable[[Role], Engine]:
    def make(role: Role) -> Engine:
        config = EngineConfig(
            cache=CacheConfig(block_size=4, num_blocks=256, prefix_caching=prefix_caching),
            scheduler=SchedulerConfig(prefill_chunk=chunk),
        )
        return assemble_engine(folder, config, device="cpu", quantize=quantize)

    return make


async def answers(fleet: Fleet, prompts: list[list[int]], *, at_once: bool) -> list[list[int]]:
    if at_once:
        found = await asyncio.gather(*(fleet.ask(prompt, SAMPLING) for prompt in prompts))
        return [answer.tokens for answer in found]
    return [(await fleet.ask(prompt, SAMPLING)).tokens for prompt in prompts]


@pytest.mark.parametrize("quantize", ["int8", "int4"])
async def test_batches_chunks_prefix_hits_and_handoffs_change_no_token(
    folder: Path, prompts: list[list[int]], quantize: str
) -> None:
    plain = engines(folder, quantize, prefix_caching=False)
    async with running_fleet(prefill=0, make_engine=plain) as alone:
        expected = await answers(alone, prompts, at_once=False)
        assert await answers(alone, prompts, at_once=True) == expected
    chunked = engines(folder, quantize, chunk=7)
    async with running_fleet(prefill=0, make_engine=chunked) as alone:
        assert await answers(alone, prompts, at_once=True) == expected
        assert await answers(alone, prompts, at_once=True) == expected  # on prefix hits
    async with running_fleet(prefill=1, make_engine=chunked) as apart:
        first = await apart.ask(prompts[-1], SAMPLING)
        assert first.tokens == expected[-1]
        assert first.receipt.kv_bytes > 0
        assert await answers(apart, prompts, at_once=True) == expected
        await apart.assert_nothing_is_held()


async def test_kv_of_other_weights_is_not_taken(folder: Path, prompts: list[list[int]]) -> None:
    def make(role: Role) -> Engine:
        return engines(folder, "none" if role is Role.PREFILL else "int8")(role)

    async with running_fleet(prefill=0, make_engine=make) as alone:
        [expected] = await answers(alone, prompts[-1:], at_once=False)
    async with running_fleet(prefill=1, make_engine=make) as apart:
        answer = await apart.ask(prompts[-1], SAMPLING)
        assert answer.tokens == expected
        assert answer.receipt.kv_bytes == 0
        await apart.assert_nothing_is_held()
