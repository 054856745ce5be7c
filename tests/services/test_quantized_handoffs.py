"""Checkpoints that come quantised, through the whole data plane."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from pathlib import Path

import pytest
from bench.quantization.checkpoint_writer import LAYOUTS, write_layout, write_mxfp4_experts
from tests.in_process_fleet import Fleet, running_fleet
from tests.services.model_engines import engines
from tests.tiny_checkpoints import VOCAB_SIZE, make_gpt_oss, make_llama

from baton.core.sampling import SamplingParams

SAMPLING = SamplingParams(temperature=0.0, max_tokens=24, ignore_eos=True)


def make_gptq(folder: Path) -> Path:
    wide = make_llama(folder / "wide", hidden_size=128, intermediate_size=256, head_dim=32)
    return write_layout(wide, folder / "model", LAYOUTS["gptq 4"])


def make_mxfp4(folder: Path) -> Path:
    return write_mxfp4_experts(make_gpt_oss(folder / "wide"), folder / "model")


@pytest.fixture(scope="module", params=[make_gptq, make_mxfp4])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    make: Callable[[Path], Path] = request.param
    return make(tmp_path_factory.mktemp("checkpoint"))


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    rng = random.Random(3)
    shared = [rng.randrange(2, VOCAB_SIZE) for _ in range(20)]
    return [shared + [rng.randrange(2, VOCAB_SIZE) for _ in range(n)] for n in (1, 7, 30, 44)]


async def answers(fleet: Fleet, prompts: list[list[int]]) -> list[list[int]]:
    found = await asyncio.gather(*(fleet.ask(prompt, SAMPLING) for prompt in prompts))
    return [answer.tokens for answer in found]


async def test_a_handoff_changes_no_token(folder: Path, prompts: list[list[int]]) -> None:
    async with running_fleet(prefill=0, make_engine=engines(folder)) as alone:
        expected = [(await alone.ask(prompt, SAMPLING)).tokens for prompt in prompts]
    async with running_fleet(prefill=1, make_engine=engines(folder, prefill_chunk=7)) as apart:
        first = await apart.ask(prompts[-1], SAMPLING)
        assert first.tokens == expected[-1]
        assert first.receipt.kv_bytes > 0
        assert await answers(apart, prompts) == expected
        await apart.assert_nothing_is_held()
