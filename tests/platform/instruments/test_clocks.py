"""Parts of a model are told apart, run by module or played from a tape."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.tiny_checkpoints import (
    make_deepseek_v3,
    make_deepseek_v4,
    make_gemma3,
    make_gpt2,
    make_llama,
    make_qwen2_moe,
    make_qwen3,
)

from baton.engine.batch.batch import Chunk, make_batch
from baton.engine.checkpoint.load import load_model
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.runner import ModelRunner
from baton.platform.instruments.part_clock import ModuleClock
from baton.platform.instruments.step_watch import WatchedRunner
from baton.platform.models.model_shape import Part

PARTS = {
    Part.EMBEDDING,
    Part.NORMS,
    Part.QKV,
    Part.ROPE,
    Part.ATTENTION,
    Part.OUT,
    Part.GATE_UP,
    Part.DOWN,
}
CHUNKS = [Chunk(range(5), 0, [0], 1), Chunk(range(3), 0, [1], 2)]


def make_runner(folder: Path) -> tuple[ModelRunner, WatchedRunner]:
    loaded = load_model(folder, dtype="float32")
    runner = ModelRunner(loaded, KvCache(loaded.info.layout(16), 8))
    return runner, WatchedRunner(runner, loaded.model)


def make_dense_deepseek(folder: Path) -> Path:
    return make_deepseek_v3(folder, first_k_dense_replace=3)


@pytest.mark.parametrize("quantize", ["none", "int8"])
def test_routers_and_experts_are_parts(quantize: str, tmp_path: Path) -> None:
    loaded = load_model(make_qwen2_moe(tmp_path), dtype="float32", quantize=quantize)
    runner = ModelRunner(loaded, KvCache(loaded.info.layout(16), 8))
    taped = WatchedRunner(runner, loaded.model)
    played = taped.forward(CHUNKS).clone()
    cache = KvCache(loaded.info.layout(16), 8)

    with ModuleClock(loaded.model) as clock:
        computed = loaded.model(make_batch(CHUNKS, 16, "cpu"), cache.layers, lambda layer: None)

    assert set(taped.part_s) >= PARTS | {Part.ROUTER, Part.EXPERTS}
    assert set(clock.seconds) == PARTS | {Part.ROUTER, Part.EXPERTS}
    assert computed.equal(played)


@pytest.mark.parametrize(
    "make",
    [make_llama, make_qwen3, make_gemma3, make_gpt2, make_dense_deepseek, make_deepseek_v4],
)
def test_a_watched_pass_gives_the_same_and_tells_its_parts(make: object, tmp_path: Path) -> None:
    runner, watched = make_runner(make(tmp_path))  # type: ignore[operator]
    expected = runner.logits(runner.forward(CHUNKS)).clone()

    layers: list[int] = []
    with watched.modules:
        logits = watched.logits(watched.forward(CHUNKS, layers.append))

    assert logits.equal(expected)
    assert layers == list(range(runner.info.num_layers))
    assert set(watched.part_s) >= PARTS | {Part.HEAD}
    assert sum(watched.part_s.values()) <= watched.pass_s + watched.head_s
    assert watched.spans


def test_modules_within_a_module_are_not_counted_twice(tmp_path: Path) -> None:
    loaded = load_model(make_llama(tmp_path), dtype="float32")
    cache = KvCache(loaded.info.layout(16), 8)

    with ModuleClock(loaded.model) as clock:
        loaded.model(make_batch(CHUNKS, 16, "cpu"), cache.layers, lambda layer: None)

    attention = sum(span.seconds for span in clock.spans if span.name == Part.ATTENTION)
    inner = clock.seconds[Part.QKV] + clock.seconds[Part.OUT]
    assert clock.seconds[Part.ATTENTION] == pytest.approx(attention - inner)
    assert set(clock.seconds) == PARTS


def test_a_clock_that_is_left_watches_no_more(tmp_path: Path) -> None:
    loaded = load_model(make_llama(tmp_path), dtype="float32")
    cache = KvCache(loaded.info.layout(16), 8)

    with ModuleClock(loaded.model) as clock:
        pass
    loaded.model(make_batch(CHUNKS, 16, "cpu"), cache.layers, lambda layer: None)

    assert not clock.seconds
