"""Passes played from a tape: the model's own, to the bit, whatever else is in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from tests.engine.model_runs import (
    BLOCK_SIZE,
    NUM_BLOCKS,
    answer,
    logits_in_chunks,
    make_prompt,
    make_runner,
    scrambled_tables,
)
from tests.tiny_checkpoints import FAMILIES, VOCAB_SIZE, make_llama
from tests.torch_threads import threads

from baton.engine.batch.batch import Chunk
from baton.engine.batch.static_batch import PassLimits
from baton.engine.checkpoint.load import load_model
from baton.engine.layers.feed_forward import GatedFeedForward
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.runner import ModelRunner
from baton.kernels.cpu.library import library

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled operators here")

PASSES = {
    "prefill": ((0, 21, 1),),
    "several prompts": ((0, 21, 1), (0, 1, 1), (0, 9, 3)),
    "a later chunk": ((13, 17, 0), (20, 3, 3)),
    "decode": ((21, 1, 1), (3, 1, 1), (40, 1, 1)),
    "mixed": ((21, 1, 1), (8, 14, 1), (0, 5, 0), (37, 1, 1)),
}
"""Of each request: tokens in the cache, new tokens, outputs."""


@pytest.fixture(scope="module", params=list(FAMILIES))
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return FAMILIES[request.param](tmp_path_factory.mktemp("model"))


@pytest.fixture
def num_threads(request: pytest.FixtureRequest) -> Iterator[int]:
    with threads(request.param):
        yield request.param


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), other.view(torch.uint8))


def play(runner: ModelRunner, requests: Sequence[tuple[int, int, int]]) -> torch.Tensor:
    """Logits of one pass; what comes before it is computed, alone, in chunks of eight."""
    prompts = [make_prompt(start + new, seed) for seed, (start, new, _) in enumerate(requests)]
    tables = scrambled_tables([len(prompt) for prompt in prompts])
    for prompt, table, (start, _, _) in zip(prompts, tables, requests, strict=True):
        for at in range(0, start, 8):
            runner.forward([Chunk(prompt[at : min(at + 8, start)], at, table, 0)])
    return answer(
        runner,
        [
            Chunk(prompt[start:], start, table, outputs)
            for prompt, table, (start, _, outputs) in zip(prompts, tables, requests, strict=True)
        ],
    )


@pytest.mark.parametrize(
    ("dtype", "num_threads"),
    [
        ("float32", 1),
        ("bfloat16", 2),
        pytest.param("float32", 2, marks=pytest.mark.wide),
        pytest.param("bfloat16", 1, marks=pytest.mark.wide),
    ],
    indirect=["num_threads"],
)
def test_a_played_pass_is_what_the_model_computes(
    folder: Path, dtype: str, num_threads: int
) -> None:
    played, computed = (make_runner(folder, dtype=dtype) for _ in range(2))
    assert played.taped is not None
    computed.taped = None

    for name, requests in PASSES.items():
        assert same_bits(play(played, requests), play(computed, requests)), name
    for ours, theirs in zip(played.cache.planes, computed.cache.planes, strict=True):
        assert same_bits(ours, theirs)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_request_gets_the_same_bits_in_any_company_and_in_any_chunks(
    folder: Path, dtype: str
) -> None:
    """Alone, chunked, after a prefix that another request computed, beside others."""
    prompt = make_prompt(30)
    (table,) = scrambled_tables([30])
    alone = answer(make_runner(folder, dtype=dtype), [Chunk(prompt, 0, table, 1)])

    for chunk_len in (1, 7, 16):
        logits = logits_in_chunks(make_runner(folder, dtype=dtype), prompt, chunk_len)
        assert same_bits(logits[-1:], alone), f"in chunks of {chunk_len}"

    runner = make_runner(folder, dtype=dtype)
    other = [*prompt[:16], *make_prompt(20, seed=5)]
    tables = scrambled_tables([40, 40, 40, 40])
    runner.forward([Chunk(other, 0, tables[0], 0)])
    shared = [*tables[0][: 16 // BLOCK_SIZE], *tables[1]]
    logits = answer(
        runner,
        [
            Chunk(make_prompt(9, seed=2), 0, tables[2], 1),
            Chunk(prompt[16:], 16, shared, 1),
            Chunk([5], 0, tables[3], 1),
        ],
    )
    assert same_bits(logits[1:2], alone), "on a shared prefix, beside others"


def test_threads_have_no_influence(tmp_path: Path) -> None:
    runner = make_runner(make_llama(tmp_path), dtype="bfloat16")
    found = []
    for num_threads in (1, 2, 3):
        with threads(num_threads):
            found.append(play(runner, PASSES["mixed"]))

    assert same_bits(found[0], found[1]) and same_bits(found[0], found[2])


def test_a_model_that_computes_with_torch_in_between_is_run_as_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    folder, prompt = make_llama(tmp_path), make_prompt(12)
    expected = logits_in_chunks(make_runner(folder), prompt, 5)
    honest = GatedFeedForward.forward
    monkeypatch.setattr(GatedFeedForward, "forward", lambda ffn, x: honest(ffn, x) * 1.0)

    runner = make_runner(folder)

    assert runner.taped is None
    assert "without a recorded tape" in caplog.text
    assert same_bits(logits_in_chunks(runner, prompt, 5), expected)


@pytest.mark.parametrize("kv_dtype", ["int8", "fp8", "int4"])
def test_kv_of_few_bits_is_played_too(kv_dtype: str, tmp_path: Path) -> None:
    loaded = load_model(make_llama(tmp_path), dtype="bfloat16")
    layout = loaded.info.layout(BLOCK_SIZE, kv_dtype)
    caches = [KvCache(layout, NUM_BLOCKS, dtype="bfloat16") for _ in range(2)]
    played, computed = (ModelRunner(loaded, cache) for cache in caches)
    assert played.taped is not None
    computed.taped = None

    for requests in PASSES.values():
        assert same_bits(play(played, requests), play(computed, requests))


@pytest.mark.parametrize("quantize", ["int8", "int4"])
def test_weights_of_few_bits_are_played_too(quantize: str, tmp_path: Path) -> None:
    loaded = load_model(
        make_llama(tmp_path, hidden_size=64, intermediate_size=64, head_dim=16),
        dtype="bfloat16",
        quantize=quantize,
    )
    layout = loaded.info.layout(BLOCK_SIZE)
    played, computed = (ModelRunner(loaded, KvCache(layout, NUM_BLOCKS)) for _ in range(2))
    assert played.taped is not None
    computed.taped = None

    for requests in PASSES.values():
        assert same_bits(play(played, requests), play(computed, requests))


def test_recording_leaves_the_cache_as_it_was(tmp_path: Path) -> None:
    runner = make_runner(make_llama(tmp_path))

    assert runner.taped is not None
    assert not any(layer.any() for layer in runner.cache.planes)


def test_layers_are_told_in_order_when_their_kv_is_there(tmp_path: Path) -> None:
    runner, prompt = make_runner(make_llama(tmp_path)), make_prompt(11)
    (table,) = scrambled_tables([len(prompt)])
    written: list[list[bool]] = []

    def look(layer: int) -> None:
        assert layer == len(written)
        written.append([bool(arena[table].any()) for arena in runner.cache.planes])

    runner.forward([Chunk(prompt[:10], 0, table, 0)], look)
    assert written == [[True, False], [True, True]]

    written.clear()
    runner.forward([Chunk(prompt[10:], 10, table, 1)], look)
    assert written == [[True, True], [True, True]]


def test_a_pass_larger_than_the_tape_is_computed_all_the_same(tmp_path: Path) -> None:
    folder, prompt = make_llama(tmp_path), make_prompt(40)
    loaded = load_model(folder)
    small = ModelRunner(
        loaded,
        KvCache(
            loaded.info.layout(BLOCK_SIZE),
            NUM_BLOCKS,
            limits=PassLimits(max_tokens=8, max_requests=4),
        ),
    )

    (table,) = scrambled_tables([40])
    chunk = Chunk(prompt, 0, table, 12)

    assert same_bits(answer(small, [chunk]), answer(make_runner(folder), [chunk]))


def test_engines_may_share_a_model(tmp_path: Path) -> None:
    loaded = load_model(make_llama(tmp_path))
    layout = loaded.info.layout(BLOCK_SIZE)
    one, other = (ModelRunner(loaded, KvCache(layout, NUM_BLOCKS)) for _ in range(2))
    prompt = make_prompt(9)
    (table,) = scrambled_tables([10])

    first = one.forward([Chunk(prompt, 0, table, 1)])
    kept = first.clone()
    other.forward([Chunk(make_prompt(9, seed=1), 0, table, 1)])

    assert torch.equal(first, kept)
    assert one.logits(first).shape == (1, VOCAB_SIZE)
