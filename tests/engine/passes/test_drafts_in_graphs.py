"""Passes that verify drafts as graphs: as by the model, and nobody else's block is written.

CUDA's part is played by `ComputingCapture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.computing_capture import graphs_of
from tests.engine.model_runs import BLOCK_SIZE, NUM_BLOCKS, make_prompt, make_runner
from tests.guessing_drafter import guessing
from tests.tiny_checkpoints import FAMILIES, make_llama

from baton.core.sampling import SamplingParams
from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.batch.static_batch import GraphSize, PassLimits
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.cuda_graphs import FEW_ROWS, DecodeGraphs
from baton.engine.passes.graph_check import disagreement
from baton.engine.passes.runner import ModelRunner
from baton.engine.request.request import Request

SPARE_BLOCK = NUM_BLOCKS - 1
LIMITS = PassLimits(max_tokens=32, max_requests=6, max_blocks=8, max_run=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"))


def drafted(runner: ModelRunner, nums_tokens: Sequence[int]) -> list[Chunk]:
    """The next tokens of requests of several lengths, in no more blocks than they need; the block
    behind is another's."""
    chunks, first = [], 0
    for request, num_tokens in enumerate(nums_tokens):
        length = 3 + 2 * request
        table = range(first, first + -(-(length + num_tokens) // BLOCK_SIZE))
        first = table.stop + 1
        runner.forward([Chunk(make_prompt(length, request), 0, table, 0)])
        tokens = [request + 5 + place for place in range(num_tokens)]
        chunks.append(Chunk(tokens, length, table, num_tokens))
    return chunks


@pytest.mark.parametrize("family", ["llama", "gpt2", "deepseek v3.2"])
@pytest.mark.parametrize("nums_tokens", [[4], [1, 4, 2], [3, 3, 1, 2, 3]])
@torch.inference_mode()
def test_drafts_are_verified_by_a_graph_as_by_the_model(
    family: str, nums_tokens: list[int], tmp_path: Path
) -> None:
    runner, taps = make_runner(FAMILIES[family](tmp_path)), AuxHiddenStates((0, 1))
    chunks = drafted(runner, nums_tokens)
    for plane in runner.cache.planes:
        plane[SPARE_BLOCK].zero_()
    before = [plane.clone() for plane in runner.cache.planes]
    batch = make_batch(chunks, BLOCK_SIZE, "cpu")
    hidden = runner.model(batch, runner.cache.layers, ignore_layer, taps)
    expected = [hidden, runner.model.logits(hidden), *taps.found]
    expected_kv = [plane.clone() for plane in runner.cache.planes]
    for plane, earlier in zip(runner.cache.planes, before, strict=True):
        plane.copy_(earlier)
    runner.graphs, runner.taped = graphs_of(runner, LIMITS, SPARE_BLOCK, taps=taps), None

    size = runner.graphs.size_for(chunks)
    hidden = runner.forward(chunks)

    assert size is not None and size.run >= max(nums_tokens) > 1
    assert all(map(torch.equal, [hidden, runner.logits(hidden), *taps.found], expected))
    last_blocks = {chunk.blocks[-1] for chunk in chunks}
    for plane, computed in zip(runner.cache.planes, expected_kv, strict=True):
        written = (plane[:SPARE_BLOCK] != computed[:SPARE_BLOCK]).flatten(1).any(1)
        assert set(written.nonzero().flatten().tolist()) <= last_blocks
    # What lies behind a request's end may be anything: the next pass is the same all the same.
    following = [
        Chunk([9], chunk.start + len(chunk.tokens), [*chunk.blocks, 100 + row], 1)
        for row, chunk in enumerate(chunks)
    ]
    found = runner.logits(runner.forward(following)).clone()
    for plane, computed in zip(runner.cache.planes, expected_kv, strict=True):
        plane.copy_(computed)
    batch = make_batch(following, BLOCK_SIZE, "cpu")
    wanted = runner.model.logits(runner.model(batch, runner.cache.layers, ignore_layer))
    assert torch.equal(found, wanted)


@torch.inference_mode()
def test_which_drafts_have_a_graph(folder: Path) -> None:
    runner = make_runner(folder)
    graphs = graphs_of(runner, LIMITS, SPARE_BLOCK)

    def size_for(*chunks: Chunk) -> GraphSize | None:
        return graphs.size_for(chunks)

    decode, two = Chunk([1], 3, [0], 1), Chunk([1, 2], 3, [0, 1], 2)

    assert size_for(two) == GraphSize(1, 2)
    assert size_for(two, decode, decode) == GraphSize(4, 2)
    assert size_for(two, Chunk([1] * 4, 0, [3], 4)) == GraphSize(2, 4)
    assert size_for(*[two] * 6) == GraphSize(6, 2)
    assert size_for(decode, decode) == GraphSize(2)
    assert size_for(*[two] * 7) is None  # more requests than were captured
    assert size_for(Chunk([1] * 5, 0, [0, 1], 5)) is None  # more tokens
    assert size_for(two, Chunk([1, 2], 0, [2], 1)) is None  # a prompt
    end = 8 * BLOCK_SIZE
    assert size_for(Chunk([1] * 3, end - 3, range(8), 3)) == GraphSize(1, 3)
    assert size_for(Chunk([1] * 3, end - 3, range(8), 3), Chunk([1] * 4, 0, [9], 4)) is None


@torch.inference_mode()
def test_nothing_is_made_up_at_positions_that_a_model_never_learnt(tmp_path: Path) -> None:
    runner = make_runner(FAMILIES["gpt2"](tmp_path))
    assert runner.model.positions is not None
    most = runner.model.positions.size
    graphs = graphs_of(runner, replace(LIMITS, max_blocks=most), SPARE_BLOCK)
    short, blocks = Chunk([1] * 4, 3, [0, 1], 4), range(most)

    assert graphs.size_for([short, Chunk([1, 2], most - 4, blocks, 2)]) == GraphSize(2, 4)
    assert graphs.size_for([short, Chunk([1, 2], most - 3, blocks, 2)]) is None
    assert disagreement(graphs) is None


@torch.inference_mode()
def test_no_more_rows_are_made_up_than_are_nearly_free(folder: Path) -> None:
    requests = FEW_ROWS // 4 + 8
    limits = PassLimits(
        max_tokens=512,
        max_requests=requests,
        max_blocks=4,
        graph_sizes=(GraphSize(FEW_ROWS // 4, 4), GraphSize(requests, 4)),
    )
    graphs = graphs_of(make_runner(folder), limits, SPARE_BLOCK)
    few, many = Chunk([1], 3, [0], 1), Chunk([1] * 4, 3, [0, 1], 4)

    assert graphs.size_for([many, few]) == GraphSize(FEW_ROWS // 4, 4)
    assert graphs.size_for([many, *[few] * (requests - 1)]) is None
    assert graphs.size_for([*[many] * (requests // 2), *[few] * (requests // 2)]) is not None


@torch.inference_mode()
def test_graphs_of_drafts_are_compared_with_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(folder)
    graphs = graphs_of(runner, LIMITS, SPARE_BLOCK)
    assert disagreement(graphs) is None
    assert not any(plane[:SPARE_BLOCK].any() for plane in runner.cache.planes)
    graph, (hidden, _) = graphs._graphs[GraphSize(6, 4)]
    replay = graph.replay

    def forget_the_last_draft() -> None:
        replay()
        hidden[3].zero_()

    monkeypatch.setattr(graph, "replay", forget_the_last_draft)

    found = disagreement(graphs)

    assert found == "the graph of 6 requests of 4 tokens gave other results than the model"


def test_an_engine_that_drafts_gives_the_same_with_graphs(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = replace(LIMITS, max_blocks=24)
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE), scheduler=SchedulerConfig(max_running=6)
    )
    replayed: list[GraphSize] = []
    forward = DecodeGraphs.forward

    def counted(graphs: DecodeGraphs, chunks: Sequence[Chunk], size: GraphSize) -> torch.Tensor:
        replayed.append(size)
        return forward(graphs, chunks, size)

    monkeypatch.setattr(DecodeGraphs, "forward", counted)

    def answers(known: dict[str, list[int]] | None) -> dict[str, list[int]]:
        loaded = load_model(folder)
        cache = KvCache(loaded.info.layout(BLOCK_SIZE), NUM_BLOCKS + 1)
        runner = ModelRunner(loaded, cache)
        runner.taped = None
        if known is not None:
            runner.graphs = graphs_of(runner, limits, NUM_BLOCKS)
        cache.num_blocks = NUM_BLOCKS
        speculation = None if known is None else guessing(known, max_tokens=3, errs_every=5)
        engine = Engine(runner, config, speculation=speculation)
        requests = [
            Request(
                str(row),
                make_prompt(5 + 3 * row, row),
                sampling=SamplingParams(
                    max_tokens=20 + 3 * row, temperature=row * 0.5, seed=row, ignore_eos=True
                ),
            )
            for row in range(5)
        ]
        for request in requests:
            engine.add(request)
        while engine.has_work:
            engine.step()
        return {request.request_id: request.output for request in requests}

    plain = answers(None)

    assert answers(plain) == plain
    assert {size.run for size in replayed} >= {1, 2, 4}
