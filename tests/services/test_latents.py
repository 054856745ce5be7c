"""Latents through the whole data plane: a vector a token, by every way, into blocks of any size."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.in_process_fleet import running_fleet
from tests.services.test_tiers import tiers_in, total, written_back
from tests.tiny_checkpoints import VOCAB_SIZE, make_deepseek_v3, transformers_greedy

from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine

NUM_LAYERS, LATENT_BYTES = 3, 256 + 8
SAMPLING = SamplingParams(temperature=0.0, max_tokens=12)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Latents so wide that whole prompts are expanded, and chunks of them absorbed."""
    return make_deepseek_v3(
        tmp_path_factory.mktemp("checkpoint"),
        kv_lora_rank=256,
        rope_parameters=None,
        initializer_range=0.2,
    )


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    shared = [rng.randrange(2, VOCAB_SIZE) for _ in range(60)]
    return [shared + [rng.randrange(2, VOCAB_SIZE) for _ in range(n)] for n in (1, 7, 30, 62)]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    return transformers_greedy(folder, prompts, 12)


def engines(
    folder: Path, *, sent: int = 4, kept: int = 4, chunk: int | None = None, num_blocks: int = 256
) -> Callable[[Role], Engine]:
    def make(role: Role) -> Engine:
        block_size = sent if role is Role.PREFILL else kept
        config = EngineConfig(
            cache=CacheConfig(block_size=block_size, num_blocks=num_blocks),
            scheduler=SchedulerConfig(prefill_chunk=chunk),
        )
        return assemble_engine(folder, config, device="cpu")

    return make


@pytest.mark.parametrize("transport", ["shm", "grpc", "gloo"])
@pytest.mark.parametrize(("sent", "kept"), [(4, 4), (4, 16), (16, 4)])
async def test_a_handoff_carries_latents_into_blocks_of_any_size(
    folder: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    transport: str,
    sent: int,
    kept: int,
) -> None:
    make_engine = engines(folder, sent=sent, kept=kept)
    ways = {"transfer.transport": "auto", "transfer.require": [transport]}
    async with running_fleet(prefill=1, make_engine=make_engine, changes=ways) as fleet:
        cold = [await fleet.ask(prompt, SAMPLING) for prompt in prompts]
        hits = await asyncio.gather(*(fleet.ask(prompt, SAMPLING) for prompt in prompts))

        assert [answer.tokens for answer in cold] == expected
        assert [answer.tokens for answer in hits] == expected
        assert cold[0].receipt.transport == transport
        num_blocks = -(-len(prompts[0]) // sent)
        assert cold[0].receipt.kv_bytes == num_blocks * sent * NUM_LAYERS * LATENT_BYTES * 4
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("chunk", [None, 7], ids=["expanded", "absorbed"])
async def test_tokens_are_the_same_in_either_form_with_preemption_after_a_handoff(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], chunk: int | None
) -> None:
    make_engine = engines(folder, chunk=chunk, num_blocks=70)
    async with running_fleet(prefill=1, make_engine=make_engine) as fleet:
        for _ in range(2):
            answers = await asyncio.gather(*(fleet.ask(p, SAMPLING) for p in prompts))
            assert [answer.tokens for answer in answers] == expected
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+1D"])
@pytest.mark.parametrize("tier", ["host", "disk"])
async def test_latents_that_left_the_device_are_swapped_in(
    folder: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    tmp_path: Path,
    tier: str,
    num_prefill: int,
) -> None:
    changes = {"tiers.min_tokens": 4, "tiers.deadline_s": 30.0, **tiers_in(tmp_path)[tier]}
    make_engine = engines(folder, num_blocks=40)
    async with running_fleet(
        prefill=num_prefill, make_engine=make_engine, changes=changes
    ) as fleet:
        for _ in range(2):
            for prompt, tokens in zip(prompts, expected, strict=True):
                assert (await fleet.ask(prompt, SAMPLING)).tokens == tokens
                await written_back(fleet)

        assert total(fleet, "tier_tokens_brought_in_total") > 0
        await fleet.assert_nothing_is_held()
