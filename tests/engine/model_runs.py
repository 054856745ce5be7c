"""Tiny models run over a cache of scattered blocks, without an engine."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tests.tiny_checkpoints import VOCAB_SIZE

from baton.engine.batch.batch import Chunk
from baton.engine.checkpoint.load import load_model
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.runner import ModelRunner

BLOCK_SIZE, NUM_BLOCKS = 4, 128


def make_runner(folder: Path, **options: Any) -> ModelRunner:
    loaded = load_model(folder, **options)
    return ModelRunner(loaded, KvCache(loaded.info.layout(BLOCK_SIZE), NUM_BLOCKS))


def make_prompt(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    tokens: list[int] = torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()
    return tokens


def scrambled_tables(lengths: Sequence[int], seed: int = 0) -> list[list[int]]:
    order = torch.randperm(NUM_BLOCKS, generator=torch.Generator().manual_seed(seed))
    blocks = iter(order.tolist())
    return [[next(blocks) for _ in range(-(-length // BLOCK_SIZE))] for length in lengths]


def answer(runner: ModelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
    """Logits of the tokens whose outputs the chunks want."""
    return runner.logits(runner.forward(chunks)).clone()


def logits_in_chunks(runner: ModelRunner, prompt: list[int], chunk_len: int) -> torch.Tensor:
    """Logits of the last token of each chunk."""
    (table,) = scrambled_tables([len(prompt)])
    return torch.cat(
        [
            answer(runner, [Chunk(prompt[start : start + chunk_len], start, table, 1)])
            for start in range(0, len(prompt), chunk_len)
        ]
    )


def assert_near(logits: torch.Tensor, expected: torch.Tensor) -> None:
    assert logits.dtype is torch.float32
    torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)
