"""What a rest of drafting sees of drafts that are made, and that nobody verifies."""

from __future__ import annotations

from collections.abc import Sequence

from tests.echo_engines import VOCAB, make_request
from torch import Tensor

from baton.core.clock import ManualClock
from baton.engine.batch.batch import Chunk, OnLayer, ignore_layer
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.passes.echo import EchoRunner, echo_info, echo_output
from baton.engine.request.request import Request
from baton.engine.speculation.draft_budget import PayingBudget
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.speculation import Speculation

MAX_TOKENS = 4


class TimedRunner(EchoRunner):
    """A drafted token takes as much longer as half a request."""

    def __init__(self, clock: ManualClock) -> None:
        super().__init__(echo_info(vocab_size=VOCAB), num_blocks=512, is_verifying=False)
        self.clock = clock

    def forward(self, chunks: Sequence[Chunk], on_layer: OnLayer = ignore_layer) -> Tensor:
        num_tokens = sum(len(chunk.tokens) for chunk in chunks)
        self.clock.advance(1e-3 * len(chunks) + 0.5e-3 * (num_tokens - len(chunks)))
        return super().forward(chunks, on_layer)


class Turning:
    """Drafts that are all wrong until they are all right."""

    name, is_costly, are_right = "turning", False, False

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        wrong = not self.are_right
        drafts = [echo_output(request.tokens, max_tokens, VOCAB) for request in requests]
        return [Draft([t ^ wrong for t in tokens], [0.5] * max_tokens) for tokens in drafts]

    def forget(self, request: Request) -> None:
        """It keeps nothing."""


def resting() -> tuple[Engine, Turning, list[Request]]:
    """Drafts have lost what a trial may lose, and rest for some hundred steps."""
    clock, drafter = ManualClock(), Turning()
    engine = Engine(
        TimedRunner(clock), EngineConfig(cache=CacheConfig(prefix_caching=False)), clock=clock
    )
    engine.speculation = Speculation(drafter, PayingBudget(MAX_TOKENS))
    requests = [make_request(str(i), range(8 + i), max_tokens=4000) for i in range(4)]
    for request in requests:
        engine.add(request)
    while not engine.speculation.is_paused:
        engine.step()
    return engine, drafter, requests


def test_a_rest_ends_when_drafts_that_nobody_verified_have_become_right() -> None:
    engine, drafter, requests = resting()
    for _ in range(20):
        engine.step()
    num_wrong = engine.stats.num_drafted
    drafter.are_right = True
    for _ in range(150):
        engine.step()

    assert engine.stats.num_drafted > num_wrong
    assert engine.stats.num_accepted > 40
    for i, request in enumerate(requests):
        assert request.output == echo_output(range(8 + i), len(request.output), VOCAB)


def test_a_rest_goes_on_where_a_trial_would_come_to_nothing() -> None:
    engine, _, _ = resting()
    num_drafted = engine.stats.num_drafted
    for _ in range(1200):
        engine.step()

    assert engine.speculation is not None
    assert engine.stats.num_drafted == num_drafted
    assert engine.speculation.metrics()["speculation_pauses_total"] == 1
