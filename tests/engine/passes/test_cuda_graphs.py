"""Decode passes as graphs: which are, and that rows for nobody change nothing.

CUDA's part is played by `ComputingCapture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.engine.computing_capture import ComputingCapture, captured_model, graphs_of
from tests.engine.model_runs import BLOCK_SIZE, NUM_BLOCKS, make_prompt, make_runner
from tests.tiny_checkpoints import make_llama

from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import GraphSize, PassLimits, StaticBatch
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.cuda_graphs import DecodeGraphs
from baton.engine.passes.graph_check import disagreement
from baton.engine.passes.graph_sizes import (
    MAX_DRAFTED_ROWS,
    GraphCosts,
    all_mixed_sizes,
    all_sizes,
    costs_of,
    graph_sizes,
    mixed_sizes_within,
    sizes_within,
)
from baton.engine.passes.graph_start import try_graphs
from baton.engine.passes.runner import ModelRunner

SPARE_BLOCK = NUM_BLOCKS - 1
LIMITS = PassLimits(max_tokens=16, max_requests=6, max_blocks=8)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"))


def make_graphs(runner: ModelRunner, capture: ComputingCapture | None = None) -> DecodeGraphs:
    return graphs_of(runner, LIMITS, SPARE_BLOCK, capture)


def prefilled(runner: ModelRunner, num_requests: int) -> list[Chunk]:
    """The next pass of requests of several lengths."""
    chunks = []
    for request in range(num_requests):
        table, length = range(4 * request, 4 * request + 4), 3 + 2 * request
        runner.forward([Chunk(make_prompt(length, request), 0, table, 0)])
        chunks.append(Chunk([request + 5], length, table, 1))
    return chunks


def without_graphs(runner: ModelRunner, chunks: Sequence[Chunk]) -> torch.Tensor:
    return runner.logits(runner.forward(chunks)).clone()


@pytest.mark.parametrize("num_requests", [1, 3, 5, 6])
@torch.inference_mode()
def test_a_replayed_pass_is_what_the_model_computes(folder: Path, num_requests: int) -> None:
    runner = make_runner(folder)
    chunks = prefilled(runner, num_requests)
    expected = without_graphs(runner, chunks)
    kv = [layer[:SPARE_BLOCK].clone() for layer in runner.cache.planes]

    runner.graphs, runner.taped = make_graphs(runner), None
    told: list[int] = []
    hidden = runner.forward(chunks, told.append)

    assert torch.equal(runner.logits(hidden), expected)
    assert told == list(range(runner.cache.layout.num_layers))
    for layer, before in zip(runner.cache.planes, kv, strict=True):
        assert torch.equal(layer[:SPARE_BLOCK], before)


@pytest.mark.parametrize("num_requests", [1, 3])
@torch.inference_mode()
def test_turns_of_a_decoding_are_what_the_model_computes(folder: Path, num_requests: int) -> None:
    replaying, computing = make_runner(folder), make_runner(folder)
    replaying.graphs, replaying.taped = make_graphs(replaying), None
    found = []
    for runner in (replaying, computing):
        first = prefilled(runner, num_requests)
        # What a pass of more requests left behind must not be seen.
        runner.forward([*first, *[Chunk([9], 0, [40 + n], 1) for n in range(6 - num_requests)]])
        decoding = Decoding(
            tokens=[chunk.tokens[0] for chunk in first],
            positions=[chunk.start for chunk in first],
            tables=[list(chunk.blocks) for chunk in first],
            open_slots=list(range(num_requests)),
        )
        logits = []
        for turn in range(6):
            logits.append(runner.logits(runner.forward(decoding)).clone())
            decoding.next_turn([turn + row for row in range(num_requests)], range(num_requests))
        found.append(torch.stack(logits))

    assert torch.equal(*found)


@pytest.mark.parametrize("num_requests", [1, 3])
@torch.inference_mode()
def test_what_taps_read_of_a_replayed_pass_is_what_the_model_gives_them(
    folder: Path, num_requests: int
) -> None:
    runner, taps = make_runner(folder), AuxHiddenStates((0, 1, 1))
    chunks = prefilled(runner, num_requests)
    batch = make_batch(chunks, BLOCK_SIZE, "cpu")
    expected = runner.model(batch, runner.cache.layers, ignore_layer, taps).clone()
    tapped, taps.found = [found.clone() for found in taps.found], []
    runner.graphs, runner.taped = graphs_of(runner, LIMITS, SPARE_BLOCK, taps=taps), None

    taps.is_on = False
    assert torch.equal(runner.forward(chunks), expected)
    assert taps.found == []  # nobody reads them, and the pass was a graph all the same
    taps.is_on = True
    assert torch.equal(runner.forward(chunks), expected)
    assert len(taps.found) == len(tapped) == 3
    assert all(map(torch.equal, taps.found, tapped))
    assert disagreement(runner.graphs) is None


@torch.inference_mode()
def test_passes_that_are_not_plain_decodes_run_as_the_model_is_written(folder: Path) -> None:
    runner = make_runner(folder)
    graphs = make_graphs(runner)
    decode = Chunk([1], 3, [0, 1], 1)

    assert graphs.size_for([decode]) == GraphSize(1)
    assert graphs.size_for([decode] * 3) == GraphSize(4)
    assert graphs.size_for([decode] * 5) == GraphSize(6)
    assert graphs.size_for([decode] * 7) is None
    assert graphs.size_for([decode, Chunk([1, 2], 0, [2], 1)]) is None
    assert graphs.size_for([Chunk([1], 0, [2], 0)]) is None
    assert graphs.size_for([Chunk([1], 8 * BLOCK_SIZE, range(9), 1)]) is None


@torch.inference_mode()
def test_logits_of_other_hidden_states_are_computed(folder: Path) -> None:
    runner = make_runner(folder)
    graphs = make_graphs(runner)
    hidden = graphs.forward([Chunk([1], 0, [0], 1)] * 2, GraphSize(2))

    assert graphs.logits_of(hidden) is not None
    assert graphs.logits_of(hidden[:1]) is None


@torch.inference_mode()
def test_the_sizes_that_were_planned_are_captured_the_largest_first(folder: Path) -> None:
    capture = ComputingCapture()
    limits = replace(
        LIMITS, graph_sizes=(GraphSize(1), GraphSize(2), GraphSize(2, 2), GraphSize(6))
    )

    graphs = graphs_of(make_runner(folder), limits, SPARE_BLOCK, capture)

    assert capture.sizes == [6, 4, 2, 1]
    found = [graphs.size_for([Chunk([1], 3, [0], 1)] * n) for n in (1, 2, 3)]
    assert found == [GraphSize(1), GraphSize(2), GraphSize(6)]


@torch.inference_mode()
def test_what_graphs_cost_is_tried_with_the_largest_and_one_more(folder: Path) -> None:
    runner = make_runner(folder)
    capture = ComputingCapture()
    left = iter([1000, 900, 892])

    tried = try_graphs(
        captured_model(runner, SPARE_BLOCK, capture),
        StaticBatch(LIMITS, BLOCK_SIZE),
        lambda: next(left),
    )

    assert tried is not None and tried.mixed is None  # of so few tokens
    assert tried.decode == costs_of(100, GraphSize(6), 8, runner.info.num_logits * 4)
    assert tried.decode == GraphCosts(100, 6, 2, 2)
    assert capture.sizes == [6, 3]


@settings(deadline=None)
@given(
    st.integers(1, 600),
    st.integers(1, 20),
    st.integers(0, 10**6),
    st.integers(0, 10**5),
    st.integers(0, 10**4),
    st.integers(0, 10**7),
)
def test_graphs_stay_within_their_budget_and_small_passes_keep_small_ones(
    max_requests: int, max_run: int, largest: int, each_more: int, each_row: int, max_bytes: int
) -> None:
    limits = PassLimits(max_requests=max_requests, max_run=max_run)
    all_there_may_be = all_sizes(limits)
    most = max(size.num_rows for size in all_there_may_be)
    costs = GraphCosts(largest, most, each_more, each_row)

    sizes = sizes_within(limits, costs, max_bytes)

    assert costs.of(sizes) <= max_bytes
    mixed = mixed_sizes_within(limits, costs, max_bytes)
    of_mixed = costs.of(list(map(GraphSize, all_mixed_sizes(limits))))
    assert costs.of(list(map(GraphSize, mixed))) <= max_bytes
    assert of_mixed > max_bytes or mixed == all_mixed_sizes(limits)
    decodes = [size.num_requests for size in sizes if size.run == 1]
    assert all(b <= 2 * a for a, b in pairwise(decodes) if b > 8)
    assert decodes[:1] == ([1] if costs.of((GraphSize(1),)) <= max_bytes else [])
    drafts = [size for size in sizes if size.run > 1]
    assert all(size.num_rows <= MAX_DRAFTED_ROWS and size.run <= 16 for size in drafts)
    assert not drafts or {size.run for size in drafts if size.num_requests == 1} >= {
        min(max_run, 16)
    }
    if costs.of(all_there_may_be) <= max_bytes:
        assert sizes == all_there_may_be


@torch.inference_mode()
def test_graphs_that_agree_leave_nothing_in_the_cache(folder: Path) -> None:
    runner = make_runner(folder)
    graphs = make_graphs(runner)

    assert disagreement(graphs) is None
    assert not any(plane[:SPARE_BLOCK].any() for plane in runner.cache.planes)


@pytest.mark.parametrize("size", [1, 4, 6])
@torch.inference_mode()
def test_a_graph_of_any_size_that_is_wrong_for_a_long_context_is_found_out(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    runner = make_runner(folder)
    graphs = make_graphs(runner)
    graph, (hidden, _) = graphs._graphs[GraphSize(size)]
    replay = graph.replay

    def forget_all_but_the_first_blocks() -> None:
        replay()
        if graphs._batch._context_lens.tensor[:size].max() > 2 * BLOCK_SIZE:
            hidden.zero_()

    monkeypatch.setattr(graph, "replay", forget_all_but_the_first_blocks)

    found = disagreement(graphs)

    requests = "1 request" if size == 1 else f"{size} requests"
    assert found == f"the graph of {requests} of 1 token gave other results than the model"


@pytest.mark.parametrize("max_requests", [1, 2, 3, 8, 64, 100, 256, 1000])
def test_sizes_end_with_the_most_requests_and_grow_by_little(max_requests: int) -> None:
    sizes = graph_sizes(max_requests)

    assert sizes[0] == 1
    assert sizes[-1] == max_requests
    assert list(sizes) == sorted(set(sizes))
    assert all(b <= 2 * a or b - a <= 8 for a, b in pairwise(sizes))
