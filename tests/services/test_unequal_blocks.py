"""Prefill and decode replicas whose blocks are of different sizes, end to end.

The engines are echoes: they notice any token's KV that is not where it must be.
"""

from __future__ import annotations

import asyncio
import random
from functools import partial
from pathlib import Path

import pytest
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, echo_engine, running_fleet
from tests.tiny_checkpoints import FAMILIES, transformers_greedy
from tests.tiny_checkpoints import VOCAB_SIZE as TINY_VOCAB_SIZE

from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_output

LENGTHS = (1, 15, 16, 17, 31, 32, 33, 47, 48, 50, 95, 130)
each_pair = pytest.mark.parametrize(("sent", "kept"), [(16, 32), (32, 16), (4, 32), (32, 4)])


def prompts_of(vocab_size: int) -> list[list[int]]:
    """Half of each is shared, so that either side finds prefixes of its own length."""
    rng = random.Random(5)
    shared = [rng.randrange(2, vocab_size) for _ in range(100)]
    return [
        shared[: length // 2] + [rng.randrange(2, vocab_size) for _ in range(length - length // 2)]
        for length in LENGTHS
    ]


@each_pair
@pytest.mark.parametrize("prefill_chunk", [None, 7], ids=["whole", "chunks of 7"])
async def test_tokens_are_equal_cold_on_prefix_hits_and_many_at_once(
    sent: int, kept: int, prefill_chunk: int | None
) -> None:
    def make_engine(role: Role) -> Engine:
        size = sent if role is Role.PREFILL else kept
        return echo_engine(
            role, block_size=size, prefill_chunk=prefill_chunk, num_blocks=4096 // size
        )

    prompts = prompts_of(VOCAB_SIZE)
    expected = [echo_output(prompt, GREEDY.max_tokens or 0, VOCAB_SIZE) for prompt in prompts]
    async with running_fleet(make_engine=make_engine) as fleet:
        cold = [await fleet.ask(prompt) for prompt in prompts]
        hits = [await fleet.ask(prompt) for prompt in prompts]
        longer = [prompt + answer.tokens for prompt, answer in zip(prompts, cold, strict=True)]
        returning = await asyncio.gather(*(fleet.ask(prompt) for prompt in longer))

        assert [answer.tokens for answer in cold] == expected
        assert [answer.tokens for answer in hits] == expected
        assert [answer.tokens for answer in returning] == [
            echo_output(prompt, GREEDY.max_tokens or 0, VOCAB_SIZE) for prompt in longer
        ]
        assert [answer.receipt.notes for answer in (*cold, *hits, *returning)] == [()] * 36
        assert all(answer.receipt.kv_bytes for answer in cold[1:])
        await fleet.assert_nothing_is_held()


def tiny_engine(folder: Path, sent: int, kept: int, role: Role) -> Engine:
    config = EngineConfig(
        cache=CacheConfig(block_size=sent if role is Role.PREFILL else kept, num_blocks=128),
        scheduler=SchedulerConfig(prefill_chunk=13),
    )
    return assemble_engine(folder, config, device="cpu")


@pytest.mark.parametrize(("sent", "kept"), [(16, 32), (32, 16)])
async def test_tokens_are_those_of_a_plain_run(sent: int, kept: int, tmp_path: Path) -> None:
    folder, prompts = FAMILIES["llama"](tmp_path), prompts_of(TINY_VOCAB_SIZE)[1:9]
    sampling = SamplingParams(temperature=0.0, max_tokens=16)
    make_engine = partial(tiny_engine, folder, sent, kept)
    async with running_fleet(make_engine=make_engine) as fleet:
        answers = await asyncio.gather(*(fleet.ask(prompt, sampling) for prompt in prompts))

        assert [answer.tokens for answer in answers] == transformers_greedy(folder, prompts, 16)
        assert any(answer.receipt.kv_bytes for answer in answers)
        await fleet.assert_nothing_is_held()
