"""A window with the first tokens (StreamingLLM) on a model that was trained without: the same as
transformers computes with that mask, and the same on all ways."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.model_runs import answer, assert_near, logits_in_chunks, make_prompt, make_runner
from tests.in_process_fleet import running_fleet
from tests.tiny_checkpoints import (
    FAMILIES,
    make_gemma3,
    make_llama,
    make_qwen3,
    make_qwen3_moe,
)
from transformers import AutoModelForCausalLM

from baton.core.errors import InvalidConfig
from baton.core.replicas import Role
from baton.core.sampling import SamplingParams
from baton.engine.assemble import assemble_engine
from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.load import load_model, read_config
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.kernels.paging.window import Streaming

WINDOW = Streaming(9, 3)
LENGTH = 40
SAMPLING = SamplingParams(temperature=0.0, max_tokens=20, ignore_eos=True)


def masked_logits(folder: Path, prompt: list[int], window: Streaming) -> torch.Tensor:
    """Of all positions, by transformers, which is told who sees whom."""
    query, key = torch.arange(len(prompt))[:, None], torch.arange(len(prompt))
    is_seen = (key <= query) & ((key > query - window.size) | (key < window.num_first))
    mask = torch.zeros(is_seen.shape).masked_fill(~is_seen, torch.finfo(torch.float32).min)
    model: Any = AutoModelForCausalLM.from_pretrained(
        folder, dtype=torch.float32, attn_implementation="eager"
    )
    with torch.inference_mode():
        found = model.eval()(torch.tensor([prompt]), attention_mask=mask[None, None])
    logits: torch.Tensor = found.logits[0]
    return logits


@pytest.mark.parametrize("make", [make_llama, make_qwen3, make_qwen3_moe])
@pytest.mark.parametrize("window", [WINDOW, Streaming(1, 1), Streaming(8, 0)], ids=str)
def test_is_what_transformers_computes_with_that_mask(
    make: Callable[..., Path], window: Streaming, tmp_path: Path
) -> None:
    folder, prompt = make(tmp_path), make_prompt(LENGTH)
    expected = masked_logits(folder, prompt, window)

    for chunk_len in (1, 7, LENGTH):
        runner = make_runner(folder, streaming=window)
        ends = [min(end, LENGTH) - 1 for end in range(chunk_len, LENGTH + chunk_len, chunk_len)]
        assert_near(logits_in_chunks(runner, prompt, chunk_len), expected[ends])


def test_a_window_that_hides_nothing_changes_nothing(tmp_path: Path) -> None:
    folder, prompt = make_llama(tmp_path), make_prompt(12)
    plain, streaming = make_runner(folder), make_runner(folder, streaming=WINDOW)

    chunk = Chunk(prompt, 0, [5, 9, 2], 12)
    assert torch.equal(answer(streaming, [chunk]), answer(plain, [chunk]))


def test_layers_that_have_a_window_keep_it(tmp_path: Path) -> None:
    config = read_config(make_gemma3(tmp_path))
    before = [layer.attention.window for layer in config.layers]
    assert None in before and len({*before}) == 2

    after = [layer.attention.window for layer in config.streaming(WINDOW).layers]

    assert after == [WINDOW if window is None else window for window in before]


def test_kv_of_another_window_is_that_of_another_model(tmp_path: Path) -> None:
    folder = make_llama(tmp_path)
    windows = (None, WINDOW, Streaming(9, 2), Streaming(8, 3))

    found = {load_model(folder, streaming=window).info.fingerprint for window in windows}

    assert len(found) == len(windows)


@pytest.mark.parametrize("family", ["deepseek v3", "deepseek v3.2"])
def test_attention_that_chooses_or_compresses_what_it_sees_is_refused(
    family: str, tmp_path: Path
) -> None:
    with pytest.raises(InvalidConfig, match=r"attention_window: .* leave it out"):
        load_model(FAMILIES[family](tmp_path), streaming=WINDOW)


@pytest.mark.parametrize("kv_dtype", ["auto", "int8", "int4"])
async def test_chunks_batches_prefix_hits_and_handoffs_change_no_token(
    kv_dtype: Any, tmp_path: Path
) -> None:
    folder = make_llama(tmp_path)
    shared = make_prompt(22)
    prompts = [shared + make_prompt(length, seed=length) for length in (1, 9, 30)]

    def engines(chunk: int | None) -> Callable[[Role], Engine]:
        cache = CacheConfig(block_size=4, num_blocks=256, kv_dtype=kv_dtype)
        config = EngineConfig(cache=cache, scheduler=SchedulerConfig(prefill_chunk=chunk))
        return lambda role: assemble_engine(folder, config, device="cpu", streaming=WINDOW)

    async with running_fleet(prefill=0, make_engine=engines(None)) as fleet:
        expected = [(await fleet.ask(prompt, SAMPLING)).tokens for prompt in prompts]
    async with running_fleet(prefill=1, make_engine=engines(5)) as fleet:
        for _ in range(2):
            asked = [fleet.ask(prompt, SAMPLING) for prompt in prompts]
            assert [each.tokens for each in await asyncio.gather(*asked)] == expected
        await fleet.assert_nothing_is_held()
