"""Graphs of a model with adapters: each row keeps its request's adapter, also in padded passes.

CUDA's part is played by `ComputingCapture`.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tests.engine.computing_capture import graphs_of, mixed_graphs_of
from tests.engine.model_runs import BLOCK_SIZE, NUM_BLOCKS, make_prompt, make_runner
from tests.peft_adapters import ATTENTION, FEED_FORWARD, make_adapter
from tests.tiny_checkpoints import make_llama

from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import PassLimits
from baton.engine.passes.runner import ModelRunner

SPARE_BLOCK = NUM_BLOCKS - 1
NUMBERS = (2, 0, 1)


@pytest.fixture
def runner(tmp_path: Path) -> ModelRunner:
    base = make_llama(tmp_path / "base")
    modules = (*ATTENTION, *FEED_FORWARD)
    folders = {str(n): make_adapter(base, tmp_path / str(n), modules, seed=n) for n in (1, 2)}
    made = make_runner(base, dtype="float32", adapters=folders)
    made.taped = None
    return made


def chunks_after_prompts(runner: ModelRunner, lengths: tuple[int, ...]) -> list[Chunk]:
    """Chunks of these lengths, all outputs wanted, behind prompts of several lengths."""
    chunks = []
    for row, (number, length) in enumerate(zip(NUMBERS, lengths, strict=True)):
        table, past = range(16 * row, 16 * row + 16), 3 + 2 * row
        tokens = make_prompt(past + length, row)
        runner.forward([Chunk(tokens[:past], 0, table, 0, row, number)])
        chunks.append(Chunk(tokens[past:], past, table, length, row, number))
    return chunks


def by_model(runner: ModelRunner, chunks: list[Chunk]) -> torch.Tensor:
    batch = make_batch(chunks, BLOCK_SIZE, "cpu")
    hidden: torch.Tensor = runner.model(batch, runner.cache.layers, ignore_layer)
    return hidden


@pytest.mark.parametrize("lengths", [(1, 1, 1), (2, 3, 1)], ids=["decoding", "verifying drafts"])
@torch.inference_mode()
def test_decode_graphs(runner: ModelRunner, lengths: tuple[int, ...]) -> None:
    limits = PassLimits(max_tokens=24, max_requests=6, max_blocks=16, max_run=4)
    chunks = chunks_after_prompts(runner, lengths)
    expected = by_model(runner, chunks)

    runner.graphs = graphs_of(runner, limits, SPARE_BLOCK)

    assert runner.graphs.size_for(chunks) is not None
    torch.testing.assert_close(runner.forward(chunks), expected)


@torch.inference_mode()
def test_turns_of_a_decoding(runner: ModelRunner) -> None:
    limits = PassLimits(max_tokens=24, max_requests=6, max_blocks=16)
    first = chunks_after_prompts(runner, (1, 1, 1))
    runner.graphs = graphs_of(runner, limits, SPARE_BLOCK)
    decoding = Decoding(
        [chunk.tokens[0] for chunk in first],
        [chunk.start for chunk in first],
        [list(chunk.blocks) for chunk in first],
        [chunk.open_slot for chunk in first],
        NUMBERS,
    )

    for turn in range(3):
        expected = by_model(runner, list(decoding))
        torch.testing.assert_close(runner.forward(decoding), expected)
        decoding.next_turn([turn + row for row in range(3)], range(3))


@torch.inference_mode()
def test_mixed_graphs(runner: ModelRunner) -> None:
    limits = PassLimits(max_tokens=100, max_requests=4, max_blocks=16)
    chunks = chunks_after_prompts(runner, (20, 1, 9))
    expected = by_model(runner, chunks)

    runner.mixed = mixed_graphs_of(runner, limits, SPARE_BLOCK)

    assert runner.mixed.size_for(chunks) is not None
    torch.testing.assert_close(runner.forward(chunks), expected)
