"""Greedy tokens through the whole data plane equal `transformers.generate`, whatever the way there.

Tiny random float32 checkpoints; 1 prefill and 1 decode replica over gRPC, or one aggregated.
"""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest
from tests.far_apart import with_wide
from tests.in_process_fleet import running_fleet
from tests.services.model_engines import engines
from tests.tiny_checkpoints import (
    FAMILIES,
    VOCAB_SIZE,
    transformers_greedy,
    transformers_logits,
)

from baton.core.sampling import SamplingParams

NUM_TOKENS = 24
SAMPLING = SamplingParams(temperature=0.0, max_tokens=NUM_TOKENS)


FAR_APART = (
    "llama",
    "gemma3",
    "phi3",
    "gpt2",
    "new falcon",
    "deepseek v3",
    "deepseek v3.2",
    "deepseek v4",
    "gpt-oss",
)
"""Families that share little, asked in every way; each of the others is asked in one hard way."""
IN_EVERY_RUN = ("llama", "gemma3", "gpt2", "deepseek v3.2", "gpt-oss")


@pytest.fixture(scope="module", params=with_wide(FAR_APART, IN_EVERY_RUN))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module", params=with_wide(FAR_APART, ("llama", "deepseek v3.2")))
def one_of_few(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """For what is the same in all families but for their logits."""
    return FAMILIES[request.param](tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    shared = [rng.randrange(2, VOCAB_SIZE) for _ in range(40)]
    lengths = [1, 2, 5, 15, 16, 17, 31, 33, 48, 64, 3, 90, 7, 21, 50, 80]
    return [
        shared[: length // 2] + [rng.randrange(2, VOCAB_SIZE) for _ in range(length - length // 2)]
        for length in lengths
    ]


@pytest.fixture(scope="module")
def expected(folder: Path, prompts: list[list[int]]) -> list[list[int]]:
    return transformers_greedy(folder, prompts, NUM_TOKENS)


@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+1D"])
@pytest.mark.parametrize("prefill_chunk", [None, 7], ids=["whole", "chunks of 7"])
async def test_one_at_a_time_cold_and_on_a_prefix_hit(
    folder: Path,
    prompts: list[list[int]],
    expected: list[list[int]],
    num_prefill: int,
    prefill_chunk: int | None,
) -> None:
    make_engine = engines(folder, prefill_chunk=prefill_chunk)
    asked, answers = prompts[:8], expected[:8]  # lengths on both sides of a block's end
    async with running_fleet(prefill=num_prefill, make_engine=make_engine) as fleet:
        cold = [await fleet.ask(prompt, SAMPLING) for prompt in asked]
        hits = [await fleet.ask(prompt, SAMPLING) for prompt in asked]

        assert [answer.tokens for answer in cold] == answers
        assert [answer.tokens for answer in hits] == answers
        assert all(a.receipt.cached_tokens >= len(p) - 4 for a, p in zip(hits, asked, strict=True))
        if num_prefill:
            assert any(answer.receipt.kv_bytes for answer in cold)
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+1D"])
async def test_sixteen_at_once_with_a_pool_so_small_that_preemption_happens(
    folder: Path, prompts: list[list[int]], expected: list[list[int]], num_prefill: int
) -> None:
    make_engine = engines(folder, prefill_chunk=7, decode_blocks=30)
    async with running_fleet(prefill=num_prefill, make_engine=make_engine) as fleet:
        decode = next(id_ for id_ in fleet.engines if id_.startswith("decode"))
        askings = [fleet.ask(prompt, SAMPLING) for prompt in prompts]
        # 80, 7, 5 and 3 tokens: 25 blocks of 30, before each grows by 6.
        answers = await fleet.ask_all(askings, at=decode, first=[15, 12, 2, 10])

        assert [answer.tokens for answer in answers] == expected
        assert fleet.engines[decode].stats.num_preempted > 0
        await fleet.assert_nothing_is_held()


OTHERS = [name for name in FAMILIES if name not in FAR_APART]


@pytest.mark.parametrize("family", with_wide(OTHERS, ["gemma2", "qwen3 moe", "llama4"]))
async def test_other_families_in_chunks_with_preemption_after_a_handoff(
    family: str, prompts: list[list[int]], tmp_path: Path
) -> None:
    folder = FAMILIES[family](tmp_path)
    expected = transformers_greedy(folder, prompts, NUM_TOKENS)
    make_engine = engines(folder, prefill_chunk=7, decode_blocks=30)
    async with running_fleet(prefill=1, make_engine=make_engine) as fleet:
        alone = await fleet.ask(prompts[8], SAMPLING)  # nobody else takes the room to hand over
        cold = await asyncio.gather(*(fleet.ask(prompt, SAMPLING) for prompt in prompts))
        hits = await asyncio.gather(*(fleet.ask(prompt, SAMPLING) for prompt in prompts))

        assert [answer.tokens for answer in cold] == expected
        assert [answer.tokens for answer in hits] == expected
        assert alone.receipt.kv_bytes
        await fleet.assert_nothing_is_held()


async def test_a_seed_draws_the_same_tokens_aggregated_and_disaggregated(
    one_of_few: Path, prompts: list[list[int]]
) -> None:
    sampling = SamplingParams(
        temperature=1.3, top_p=0.9, top_k=40, presence_penalty=0.5, seed=11, max_tokens=NUM_TOKENS
    )
    async with running_fleet(prefill=0, make_engine=engines(one_of_few)) as fleet:
        here = [(await fleet.ask(prompt, sampling)).tokens for prompt in prompts]
    in_chunks = engines(one_of_few, prefill_chunk=7)
    async with running_fleet(prefill=1, make_engine=in_chunks) as fleet:
        answers = await asyncio.gather(*(fleet.ask(prompt, sampling) for prompt in prompts))

    assert [answer.tokens for answer in answers] == here


@pytest.mark.parametrize("num_prefill", [0, 1], ids=["aggregated", "1P+1D"])
async def test_logprobs_after_a_handoff_are_those_of_transformers(
    folder: Path, prompts: list[list[int]], num_prefill: int
) -> None:
    sampling = SamplingParams(temperature=0.0, max_tokens=8, ignore_eos=True, num_logprobs=4)
    make_engine = engines(folder, prefill_chunk=7)
    async with running_fleet(prefill=num_prefill, make_engine=make_engine) as fleet:
        for prompt in prompts[3:9]:
            answer = await fleet.ask(prompt, sampling)

            logits = transformers_logits(folder, [*prompt, *answer.tokens])
            wanted = logits.log_softmax(dim=-1)[len(prompt) - 1 :]
            assert len(answer.logprobs) == len(answer.tokens) == 8
            for place, logprob in enumerate(answer.logprobs):
                for token, value in ((logprob.token, logprob.logprob), *logprob.top):
                    assert value == pytest.approx(wanted[place, token].item(), abs=1e-4)
