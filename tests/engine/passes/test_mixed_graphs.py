"""Passes with prompts as graphs: as by the model, and nothing made up for nobody is seen.

CUDA's part is played by `ComputingCapture`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.engine.computing_capture import ComputingCapture, captured_model, mixed_graphs_of
from tests.engine.model_runs import BLOCK_SIZE, NUM_BLOCKS, make_prompt, make_runner
from tests.kernels.gpu.pretended_gpu import tensors_on_a_gpu
from tests.tiny_checkpoints import FAMILIES, make_llama

from baton.core.sampling import SamplingParams
from baton.engine.batch.batch import Chunk, ignore_layer, make_batch
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import PassLimits
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.graph_start import checked_mixed
from baton.engine.passes.mixed_check import mixed_disagreement
from baton.engine.passes.mixed_graphs import MixedGraphs
from baton.engine.passes.runner import ModelRunner
from baton.engine.request.request import Request
from baton.kernels.latent_attention.latent_attention import is_expanded_cheaper

SPARE_BLOCK = NUM_BLOCKS - 1
LIMITS = PassLimits(max_tokens=100, max_requests=4, max_blocks=30)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"))


def requests_of(runner: ModelRunner, lengths: Sequence[tuple[int, int]]) -> list[Chunk]:
    """Chunks of (new tokens, tokens before them), in blocks of their own."""
    chunks, first = [], 0
    for request, (num_tokens, past) in enumerate(lengths):
        table = range(first, first + -(-(past + num_tokens) // BLOCK_SIZE))
        first = table.stop
        prompt = make_prompt(past + num_tokens, request)
        if past:
            runner.forward([Chunk(prompt[:past], 0, table, 0)])
        num_outputs = num_tokens if request == 1 else 1
        chunks.append(Chunk(prompt[past:], past, table, num_outputs))
    return chunks


@pytest.mark.parametrize("family", ["llama", "gpt2", "deepseek v3"])
@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([(23, 0)], id="a prompt"),
        pytest.param([(1, 9), (20, 7), (1, 30), (10, 0)], id="all rows, and no token left over"),
        pytest.param([(3, 9), (40, 1), (1, 12)], id="more tokens than a step"),
    ],
)
@torch.inference_mode()
def test_a_pass_with_prompts_is_what_the_model_computes(
    family: str, lengths: Sequence[tuple[int, int]], tmp_path: Path
) -> None:
    runner, taps = make_runner(FAMILIES[family](tmp_path)), AuxHiddenStates((0, 1))
    chunks = requests_of(runner, lengths)
    before = [plane.clone() for plane in runner.cache.planes]
    batch = make_batch(chunks, BLOCK_SIZE, "cpu")
    hidden = runner.model(batch, runner.cache.layers, ignore_layer, taps)
    expected = [hidden, runner.model.logits(hidden), *taps.found]
    expected_kv = [plane[:SPARE_BLOCK].clone() for plane in runner.cache.planes]
    for plane, earlier in zip(runner.cache.planes, before, strict=True):
        plane.copy_(earlier)
    runner.mixed = mixed_graphs_of(runner, LIMITS, SPARE_BLOCK, taps=taps)
    runner.taped = None
    runner.mixed.forward(requests_of(runner, [(60, 0)]), 64)  # whose leftovers nobody must see
    for plane, earlier in zip(runner.cache.planes, before, strict=True):
        plane.copy_(earlier)

    told: list[int] = []
    assert runner.mixed.size_for(chunks) == (32 if sum(n for n, _ in lengths) <= 32 else 64)
    hidden = runner.forward(chunks, told.append)

    assert all(map(torch.equal, [hidden, runner.logits(hidden), *taps.found], expected))
    assert told == list(range(runner.cache.layout.num_layers))
    for plane, computed in zip(runner.cache.planes, expected_kv, strict=True):
        assert torch.equal(plane[:SPARE_BLOCK], computed)


@torch.inference_mode()
def test_kernels_of_a_gpu_find_whose_the_tokens_of_a_graph_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("baton.kernels.attention.paged_decode_gpu.ENOUGH_PROGRAMS", 4)
    runner = make_runner(make_llama(tmp_path, num_hidden_layers=1, num_key_value_heads=1))
    runner.taped = None
    chunks = requests_of(runner, [(2, 9), (17, 1), (1, 12)])  # and four tokens are nobody's
    kv = [plane.clone() for plane in runner.cache.planes]
    expected = runner.forward(chunks).clone()
    for plane, before in zip(runner.cache.planes, kv, strict=True):
        plane.copy_(before)
    runner.cache.__dict__.pop("layers")  # chosen anew, as on a GPU

    with tensors_on_a_gpu():
        limits = replace(LIMITS, mixed_sizes=(24,))
        runner.mixed = mixed_graphs_of(runner, limits, SPARE_BLOCK)
        found = runner.forward(chunks)

    torch.testing.assert_close(found, expected, rtol=0, atol=1e-4)


@torch.inference_mode()
def test_which_passes_with_prompts_have_a_graph(folder: Path) -> None:
    runner = make_runner(folder)
    capture = ComputingCapture()
    graphs = mixed_graphs_of(runner, LIMITS, SPARE_BLOCK, capture)
    decode = Chunk([1], 3, [0], 1)

    def size_for(*lengths: int) -> int | None:
        return graphs.size_for([Chunk([1] * length, 0, range(30), 1) for length in lengths])

    assert capture.sizes == [100, 96, 64, 32], "the largest first"
    assert size_for(5) == size_for(1, 31) == 32
    assert size_for(1, 32) == 64
    assert size_for(97) == size_for(25, 25, 25, 25) == 100
    assert size_for(101) is None  # more tokens than were captured
    assert size_for(1, 1, 1, 1, 1) is None  # more requests
    longest = LIMITS.max_blocks * BLOCK_SIZE
    assert graphs.size_for([decode, Chunk([1] * 8, longest - 8, range(30), 1)]) == 32
    assert graphs.size_for([decode, Chunk([1] * 9, longest - 8, range(31), 1)]) is None
    assert graphs.size_for(Decoding([1], [3], [[0]], [0])) is None  # which has others


@torch.inference_mode()
def test_no_more_tokens_are_made_up_than_are_nearly_free(folder: Path) -> None:
    limits = replace(LIMITS, max_tokens=200, max_blocks=60, mixed_sizes=(32, 128, 200))
    graphs = mixed_graphs_of(make_runner(folder), limits, SPARE_BLOCK)

    def size_for(length: int) -> int | None:
        return graphs.size_for([Chunk([1] * length, 0, range(60), 1)])

    assert [size_for(length) for length in (33, 129, 160)] == [128, None, 200]


@torch.inference_mode()
def test_latents_that_would_be_expanded_run_as_the_model_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner = make_runner(FAMILIES["deepseek v3"](tmp_path))
    graphs = mixed_graphs_of(runner, LIMITS, SPARE_BLOCK)
    first, later = requests_of(runner, [(70, 0), (8, 4)])
    latent = runner.model.latent
    assert latent is not None
    assert not is_expanded_cheaper(latent, 70, 70, 4), "its heads are as small as that"
    expected = runner.forward([first, later]).clone()

    assert graphs.size_for([first, later]) == 96
    assert torch.equal(graphs.forward([first, later], 96), expected)
    monkeypatch.setattr(
        "baton.engine.passes.expanded.is_expanded_cheaper", lambda *of: of[1:3] == (70, 70)
    )
    assert graphs.size_for([first, later]) is None
    assert graphs.size_for([later]) == 32


@pytest.mark.parametrize("size", [32, 96, 100])
@torch.inference_mode()
def test_graphs_of_passes_with_prompts_are_compared_with_the_model(
    folder: Path, monkeypatch: pytest.MonkeyPatch, size: int
) -> None:
    runner = make_runner(folder)
    graphs = mixed_graphs_of(runner, LIMITS, SPARE_BLOCK)

    assert mixed_disagreement(graphs) is None
    assert not any(plane[:SPARE_BLOCK].any() for plane in runner.cache.planes)
    graph, (hidden,) = graphs._graphs[size]
    replay = graph.replay

    def forget_who_decodes() -> None:
        replay()
        hidden[2] = 0.0  # the first two are the prompt's

    monkeypatch.setattr(graph, "replay", forget_who_decodes)
    reason = f"the graph of {size} tokens gave other results than the model"
    assert mixed_disagreement(graphs) == reason


@torch.inference_mode()
def test_a_model_that_asks_for_lengths_gets_no_such_graphs_and_it_is_said(
    folder: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    runner, capture = make_runner(folder), ComputingCapture()
    ask = "baton.kernels.attention.paged_attention_cpu.paged_attention"
    monkeypatch.setattr(ask, lambda q, arena, sequences, *rules: sequences.lengths())
    runner.cache.__dict__.pop("layers")  # chosen anew

    assert checked_mixed(captured_model(runner, SPARE_BLOCK, capture), LIMITS) is None
    assert "passes with prompts run without graphs" in caplog.text
    assert "lengths of requests cannot be captured" in caplog.text


def test_an_engine_gives_the_same_with_graphs_of_its_prompts(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE),
        scheduler=SchedulerConfig(max_running=4, max_batch_tokens=40),
    )
    replayed: list[int] = []
    forward = MixedGraphs.forward

    def counted(graphs: MixedGraphs, chunks: Sequence[Chunk], size: int) -> torch.Tensor:
        replayed.append(len(chunks))
        return forward(graphs, chunks, size)

    monkeypatch.setattr(MixedGraphs, "forward", counted)

    def answers(*, has_graphs: bool) -> list[list[int]]:
        loaded = load_model(folder)
        cache = KvCache(loaded.info.layout(BLOCK_SIZE), NUM_BLOCKS + 1)
        runner = ModelRunner(loaded, cache)
        runner.taped = None
        if has_graphs:
            runner.mixed = mixed_graphs_of(runner, LIMITS, NUM_BLOCKS)
        cache.num_blocks = NUM_BLOCKS
        engine = Engine(runner, config)
        requests = [
            Request(
                str(row),
                make_prompt(5 + 13 * row, row),
                sampling=SamplingParams(max_tokens=9, temperature=row * 0.5, seed=row),
            )
            for row in range(6)
        ]
        for request in requests:
            engine.add(request)
        while engine.has_work:
            engine.step()
        return [request.output for request in requests]

    assert answers(has_graphs=True) == answers(has_graphs=False)
    assert max(replayed) == 4 and min(replayed) >= 1
