"""Tokens that go from draw to pass without the host: the same as if it had read each of them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.engine.computing_capture import graphs_of
from tests.engine.model_runs import BLOCK_SIZE, NUM_BLOCKS, make_prompt
from tests.tiny_checkpoints import make_llama

from baton.core.sampling import SamplingParams
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import PassLimits
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.engine import Engine
from baton.engine.memory.kv_cache import KvCache
from baton.engine.passes.runner import ModelRunner
from baton.engine.request.request import Request

LIMITS = PassLimits(max_tokens=16, max_requests=6, max_blocks=24)
WAYS: dict[str, dict[str, Any]] = {
    "greedy": {"temperature": 0.0},
    "drawn": {"temperature": 0.9, "top_p": 0.9},
    "filtered": {"temperature": 1.3, "top_k": 7, "min_p": 0.01},
    "penalised": {"temperature": 0.0, "repetition_penalty": 1.3, "frequency_penalty": 0.4},
    "all of it": {"temperature": 1.1, "presence_penalty": 0.7, "logit_bias": ((5, 1.5), (9, -3.0))},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_llama(tmp_path_factory.mktemp("model"))


def make_engine(folder: Path, *, is_async: bool) -> Engine:
    """With graphs, where `auto` turns async scheduling on, or without."""
    loaded = load_model(folder)
    cache = KvCache(loaded.info.layout(BLOCK_SIZE), NUM_BLOCKS + 1)
    runner = ModelRunner(loaded, cache)
    runner.taped = None
    if is_async:
        runner.graphs = graphs_of(runner, LIMITS, spare_block=NUM_BLOCKS)
    cache.num_blocks = NUM_BLOCKS
    config = EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE), scheduler=SchedulerConfig(max_running=6)
    )
    return Engine(runner, config)


def answers(engine: Engine, ways: Sequence[dict[str, Any]]) -> list[list[int]]:
    requests = [
        Request(
            str(i),
            make_prompt(5 + 3 * i, i),
            sampling=SamplingParams(max_tokens=24 + 3 * i, seed=i, ignore_eos=True, **way),
        )
        for i, way in enumerate(ways)
    ]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [request.output for request in requests]


@pytest.mark.parametrize("names", [*([name] for name in WAYS), list(WAYS)], ids=str)
def test_async_scheduling_draws_the_tokens_that_sync_scheduling_would(
    folder: Path, names: Sequence[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    ways = [WAYS[name] for name in names]
    expected = answers(make_engine(folder, is_async=False), ways)

    def tokens(self: Decoding) -> Sequence[int]:
        assert self.drawn is None, "the host asks for tokens that only the device has"
        assert self._tokens is not None
        return self._tokens

    monkeypatch.setattr(Decoding, "tokens", property(tokens))
    engine = make_engine(folder, is_async=True)
    turns: list[bool] = []
    next_turn = Decoding.next_turn

    def note(self: Decoding, tokens: Sequence[int] | torch.Tensor, grown: Sequence[int]) -> None:
        turns.append(isinstance(tokens, torch.Tensor))
        next_turn(self, tokens, grown)

    monkeypatch.setattr(Decoding, "next_turn", note)

    assert answers(engine, ways) == expected
    assert turns.count(True) > 20
