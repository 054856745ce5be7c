"""Drafts that are made while drafting is paused, compared and never verified."""

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
from baton.engine.request.step_report import StepReport
from baton.engine.speculation.draft_budget import AdaptiveBudget, FixedBudget
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.speculation import Speculation
from baton.engine.speculation.watch import MIN_RUNNING

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

    def __init__(self) -> None:
        self.num_asked = 0

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        self.num_asked += 1
        wrong = not self.are_right
        drafts = [echo_output(request.tokens, max_tokens, VOCAB) for request in requests]
        return [Draft([t ^ wrong for t in tokens], [0.5] * max_tokens) for tokens in drafts]

    def forget(self, request: Request) -> None:
        """It keeps nothing."""


class Told(FixedBudget):
    """Drafts for one step when it is told to, and keeps what drafts that nobody verified came
    to."""

    is_on = True

    def __init__(self) -> None:
        super().__init__(MAX_TOKENS)
        self.seen: list[tuple[float, int]] = []

    @property
    def is_paused(self) -> bool:  # type: ignore[override]
        return self.is_on

    is_inactive = is_paused

    def begins(self, num_running: int) -> bool:
        return not self.is_on

    def learn(self, report: StepReport, seconds: float) -> None:
        self.is_on = True

    def row_price(self, num_running: int) -> float:
        return 0.5

    def watched(self, gain: float, num_compared: int) -> bool:
        self.seen.append((gain, num_compared))
        return False


def paused_engine(
    num_requests: int = 4, *, num_right: int = 0
) -> tuple[Engine, Turning, list[Request]]:
    """Drafts have lost what a trial may lose, and pause for some hundred steps; before, they were
    right in so many steps."""
    clock, drafter = ManualClock(), Turning()
    engine = Engine(
        TimedRunner(clock), EngineConfig(cache=CacheConfig(prefix_caching=False)), clock=clock
    )
    engine.speculation = Speculation(drafter, AdaptiveBudget(MAX_TOKENS))
    requests = [make_request(str(i), range(8 + i), max_tokens=4000) for i in range(num_requests)]
    for request in requests:
        engine.add(request)
    drafter.are_right = True
    for _ in range(num_right):
        engine.step()
    drafter.are_right = False
    while not engine.speculation.is_paused:
        engine.step()
    return engine, drafter, requests


def test_a_pause_ends_when_drafts_that_nobody_verified_have_become_right() -> None:
    engine, drafter, requests = paused_engine()
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


def test_a_pause_goes_on_where_a_trial_would_come_to_nothing() -> None:
    engine, _, _ = paused_engine()
    num_drafted = engine.stats.num_drafted
    for _ in range(1200):
        engine.step()

    assert engine.speculation is not None
    assert engine.stats.num_drafted == num_drafted
    assert engine.speculation.metrics()["speculation_pauses_total"] == 1


def test_what_was_seen_in_one_pause_says_nothing_of_the_next() -> None:
    engine, drafter, _ = paused_engine()
    budget = Told()
    engine.speculation = Speculation(drafter, budget)
    for _ in range(40):
        engine.step()
    in_the_first = budget.seen[-1]
    budget.is_on = False
    for _ in range(2):
        engine.step()

    assert in_the_first[0] < 0 and in_the_first[1] > 20
    assert budget.seen[-1] == (0.0, 0)


def test_a_pause_that_others_have_paid_for_ends_with_them_while_nothing_is_added_up() -> None:
    engine, drafter, requests = paused_engine(MIN_RUNNING - 1, num_right=200)
    speculation = engine.speculation
    assert speculation is not None
    while not speculation.is_skipping:
        engine.step()
    for request in requests:
        engine.abort(request.request_id)
    engine.add(make_request("next", range(20), max_tokens=40))
    num_asked = drafter.num_asked
    for _ in range(8):  # what steps of one request take is to be known first
        engine.step()

    assert drafter.num_asked > num_asked
    assert not speculation.is_paused


def test_drafts_of_answers_are_compared_that_end_before_all_others_had_their_turn() -> None:
    clock, budget = ManualClock(), Told()
    engine = Engine(TimedRunner(clock), EngineConfig(), clock=clock)
    engine.speculation = Speculation(Turning(), budget)
    for number in range(160):
        engine.add(make_request(str(number), range(8 + number % 5), max_tokens=8))
    while engine.num_waiting:
        engine.step()

    assert len(budget.seen) >= budget.seen[-1][1] > 8
