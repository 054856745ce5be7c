"""Requests get the same tokens whether all logits are computed or not."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest
import torch
from tests.guessing_drafter import guessing
from tests.tiny_checkpoints import make_gemma2, make_llama

from baton.core.sampling import SamplingParams
from baton.engine.assemble import engine_around
from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.passes.runner import ModelRunner
from baton.engine.request.request import Request
from baton.kernels.cpu.library import library
from baton.kernels.products import vocabulary_screen
from baton.kernels.products.vocabulary_screen import ScreenedTokens
from baton.kernels.sampling.draw_token import Draws

pytestmark = pytest.mark.skipif(library() is None, reason="no compiled operators here")

VOCAB_SIZE, MAX_TOKENS = 4096, 24
CONFIG = EngineConfig(cache=CacheConfig(num_blocks=256, block_size=4))


class Finds:
    """Counts the rows that a runner finds the best tokens of without logits."""

    def __init__(self, runner: ModelRunner, monkeypatch: pytest.MonkeyPatch) -> None:
        self.num_rows = 0
        self._find = runner.screened_tokens
        monkeypatch.setattr(runner, "screened_tokens", self)

    def __call__(self, hidden: torch.Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        found = self._find(hidden, draws)
        self.num_rows += 0 if found is None else len(found.tokens)
        return found


class Lapses:
    """Leaves each `period`th pass that could be screened to logits."""

    def __init__(self, runner: ModelRunner, period: int) -> None:
        self._runner = runner
        self._period = period
        self._calls = count(1)

    def __call__(self, hidden: torch.Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        if next(self._calls) % self._period == 0:
            return None
        return ModelRunner.screened_tokens(self._runner, hidden, draws)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> LoadedModel:
    folder = make_llama(tmp_path_factory.mktemp("model"), vocab_size=VOCAB_SIZE)
    return load_model(folder, dtype=request.param)


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vocabulary_screen, "MIN_BYTES", 0)


def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(0)
    return [
        torch.randint(2, VOCAB_SIZE, (length,), generator=generator).tolist()
        for length in (1, 5, 17, 30, 64)
    ]


def answers(engine: Engine, sampling: SamplingParams) -> list[list[int]]:
    requests = [Request(str(i), prompt, sampling=sampling) for i, prompt in enumerate(prompts())]
    for request in requests:
        engine.add(request)
    while engine.has_work:
        engine.step()
    return [list(request.output) for request in requests]


def runner_of(engine: Engine) -> ModelRunner:
    assert isinstance(engine.runner, ModelRunner)
    return engine.runner


def test_tokens_are_those_of_requests_that_need_all_logits(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    greedy = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    told = SamplingParams(temperature=0, max_tokens=MAX_TOKENS, num_logprobs=0)
    engine = engine_around(loaded, CONFIG, "cpu")
    finds = Finds(runner_of(engine), monkeypatch)

    expected = answers(engine, told)
    assert finds.num_rows == 0
    assert answers(engine, greedy) == expected
    assert finds.num_rows == sum(map(len, expected))


@pytest.mark.parametrize("cut", [{"min_p": 0.001}, {"top_k": 20, "top_p": 0.95}], ids=str)
def test_drawn_tokens_are_those_of_requests_that_need_all_logits(
    loaded: LoadedModel, cut: dict[str, float], monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = SamplingParams(temperature=0.9, seed=7, max_tokens=MAX_TOKENS, **cut)  # type: ignore[arg-type]
    engine = engine_around(loaded, CONFIG, "cpu")
    finds = Finds(runner_of(engine), monkeypatch)

    expected = answers(engine, replace(drawn, num_logprobs=0))
    assert finds.num_rows == 0
    assert answers(engine, drawn) == expected
    assert finds.num_rows > len(expected)
    assert answers(engine, replace(drawn, seed=8)) != expected


def test_the_tokens_after_prompts_are_drawn_without_all_logits(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = engine_around(loaded, CONFIG, "cpu")
    finds = Finds(runner_of(engine), monkeypatch)
    for i, prompt in enumerate(prompts()):
        sampling = SamplingParams(temperature=0.5 * (i % 2), top_k=3, seed=i, max_tokens=1)
        engine.add(Request(str(i), prompt, sampling=sampling))

    engine.step()

    assert not engine.has_work
    assert finds.num_rows == len(prompts())


def test_tokens_are_the_same_whichever_passes_are_screened(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also while requests join and leave, and next to greedy ones."""
    engine = engine_around(loaded, CONFIG, "cpu")
    found = []
    for period in (1000, 2, 3):
        lapses = Lapses(runner_of(engine), period)
        monkeypatch.setattr(engine.runner, "screened_tokens", lapses)
        requests = [
            Request(
                str(i),
                prompt,
                sampling=SamplingParams(
                    temperature=0.8 * (i % 3),
                    top_k=10 * (i % 2),
                    top_p=0.9 if i > 1 else 1.0,
                    seed=i,
                    max_tokens=6 + 5 * i,
                ),
            )
            for i, prompt in enumerate(prompts())
        ]
        for request in requests:
            engine.add(request)
            for _ in range(4):
                engine.step()
        while engine.has_work:
            engine.step()
        found.append([list(request.output) for request in requests])

    assert found[0] == found[1] == found[2]


def test_drafts_are_verified_by_the_same_tokens(
    loaded: LoadedModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    sampling = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)
    expected = answers(engine_around(loaded, CONFIG, "cpu"), sampling)
    known = {str(number): answer for number, answer in enumerate(expected)}
    engine = engine_around(loaded, CONFIG, "cpu")
    engine.speculation = guessing(known, 4)
    finds = Finds(runner_of(engine), monkeypatch)

    assert answers(engine, sampling) == expected
    assert engine.stats.num_accepted > 0
    assert finds.num_rows > sum(map(len, expected))


def test_a_soft_cap_needs_all_logits(tmp_path: Path) -> None:
    folder = make_gemma2(tmp_path, vocab_size=VOCAB_SIZE)
    engine = engine_around(load_model(folder, dtype="float32"), CONFIG, "cpu")

    assert runner_of(engine).screen is None
