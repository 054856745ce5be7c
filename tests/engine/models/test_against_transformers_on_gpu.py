"""Whole models on the kernels of a GPU, against transformers: interpreted, and where there is one.

Two families that between them have windows, soft caps, norms of heads and norms in float32; on a
device it is all of them.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests import tiny_checkpoints
from tests.engine.model_runs import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    answer,
    assert_near,
    logits_in_chunks,
    make_prompt,
    make_runner,
    scrambled_tables,
)
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from tests.tiny_checkpoints import transformers_logits

from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.load import load_model
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.runner import ModelRunner

FAMILIES = (
    "llama",
    "mistral",
    "qwen2",
    "qwen3",
    "gemma2",
    "gemma3",
    "phi3",
    "gpt2",
    "falcon",
    "new_falcon",
    "mixtral",
    "qwen2_moe",
    "qwen3_moe",
    "llama4",
)


BY_EXPERTS = ("mixtral", "llama4")


def checkpoint(family: str, folder: Path) -> Path:
    made: Path = getattr(tiny_checkpoints, f"make_{family}")(folder / family)
    return made


@pytest.mark.parametrize(
    "family",
    ["qwen3", "gemma2", *(pytest.param(name, marks=pytest.mark.wide) for name in BY_EXPERTS)],
)
def test_a_prompt_in_chunks_beside_a_request_that_decodes(family: str, tmp_path: Path) -> None:
    folder = checkpoint(family, tmp_path)
    prompt, other = make_prompt(12), make_prompt(7, seed=1)
    table, other_table = scrambled_tables([12, 7])
    runner = make_runner(folder)
    runner.taped = None
    runner.cache.__dict__.pop("layers")  # chosen anew, as on a GPU

    with tensors_on_a_gpu():
        runner._layers = runner.cache.layers
        first = answer(
            runner, [Chunk(prompt[:8], 0, table, 1), Chunk(other[:6], 0, other_table, 1)]
        )
        then = answer(runner, [Chunk(prompt[8:], 8, table, 4), Chunk(other[6:], 6, other_table, 1)])

    expected, expected_other = (
        transformers_logits(folder, prompt),
        transformers_logits(folder, other),
    )
    assert_near(first, torch.stack((expected[7], expected_other[5])))
    assert_near(then[:4], expected[8:])
    assert_near(then[4:], expected_other[6:])


@pytest.mark.gpu
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("chunk_len", [1, 7, 75])
def test_every_family_on_a_device(family: str, chunk_len: int, tmp_path: Path) -> None:
    folder, prompt = checkpoint(family, tmp_path), make_prompt(75)
    loaded = load_model(folder, device="cuda")
    runner = ModelRunner(loaded, KvCache(loaded.info.layout(BLOCK_SIZE), NUM_BLOCKS, "cuda"))

    logits = logits_in_chunks(runner, prompt, chunk_len).cpu()

    ends = [*range(chunk_len - 1, 75, chunk_len)]
    assert_near(logits[: len(ends)], transformers_logits(folder, prompt)[ends])
