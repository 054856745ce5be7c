"""Prompts in the gateway's line: each leaves it once, in its turn, to a candidate that takes it."""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from baton.router.offers import LOOKED_AT, MAX_OFFERED
from baton.router.policies.cost import Cost
from baton.router.policies.routing_policy import PrefixHits
from baton.router.prefill_queue import PrefillQueue
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate
from baton.router.replicas.candidates import CandidateTable
from baton.router.speeds.speed import ConstantRate

TOKENS_PER_S = 1000.0
CREDIT = 4000
NAMES = ("a", "b", "c")


class LineMachine(RuleBasedStateMachine):
    """A gateway with three replicas; one of them may stop, and finishes nothing from then on."""

    prompts = Bundle("prompts")
    sessions = st.sampled_from("xyz")

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.candidates = CandidateTable(
            Candidate(name, ConstantRate(tokens_per_s=TOKENS_PER_S), credit_tokens=CREDIT)
            for name in NAMES
        ).all
        self.cached: dict[tuple[str, str], int] = {}
        """By conversation and replica."""
        self.line = PrefillQueue(Cost(), self.held_by)
        self.waiting: set[int] = set()
        self.sent: set[int] = set()
        self.num_arrived = 0
        self.stopped: Candidate | None = None

    def held_by(self, prompts: Sequence[Prompt], candidate: Candidate) -> Sequence[int]:
        return [
            min(self.cached.get((prompt.session, candidate.name), 0), prompt.num_tokens - 1)
            for prompt in prompts
        ]

    def send(self, prompt: Prompt, candidate: Candidate) -> None:
        assert prompt.number not in self.sent
        [num_held] = self.held_by([prompt], candidate)
        assert candidate.takes(prompt, num_held)
        self.sent.add(prompt.number)
        self.waiting.discard(prompt.number)
        candidate.book(prompt, num_held, self.now)
        self.cached[prompt.session, candidate.name] = prompt.num_tokens

    def offer(self, candidate: Candidate) -> None:
        while (prompt := self.line.free(candidate, self.candidates, self.now)) is not None:
            assert prompt.number in self.waiting
            self.send(prompt, candidate)

    def arrive(self, prompt: Prompt) -> None:
        held = [self.held_by([prompt], candidate)[0] for candidate in self.candidates]
        place = self.line.arrive(
            prompt, self.candidates, PrefixHits(np.array(held, float)), self.now
        )
        self.waiting.add(prompt.number)
        if place is not None:
            self.send(prompt, self.candidates[place])

    def finish_oldest(self, candidate: Candidate) -> None:
        booking = next(iter(candidate.open.values()), None)
        if booking is not None:
            assert candidate.finished(booking.prompt, self.now) is booking
            assert candidate.finished(booking.prompt, self.now) is None
        self.offer(candidate)

    @rule(sizes=st.lists(st.integers(1, 3000), min_size=6, max_size=12), session=sessions)
    def a_burst_arrives(self, sizes: list[int], session: str) -> None:
        for num_tokens in sizes:
            self.a_prompt_arrives(num_tokens, session)

    @rule(target=prompts, num_tokens=st.integers(1, 6000), session=sessions)
    def one_arrives(self, num_tokens: int, session: str) -> Prompt:
        return self.a_prompt_arrives(num_tokens, session)

    def a_prompt_arrives(self, num_tokens: int, session: str) -> Prompt:
        prompt = Prompt(
            number=self.num_arrived,
            num_tokens=num_tokens,
            arrived_s=self.now,
            names=(session.encode() * 16,),
            num_blocks=1,
            block_size=num_tokens,
            session=session,
            draw=self.num_arrived * 7919,
        )
        self.num_arrived += 1
        self.arrive(prompt)
        return prompt

    @rule(place=st.integers(0, 2), after_s=st.floats(0.0, 8.0))
    def a_first_token_comes(self, place: int, after_s: float) -> None:
        self.now += after_s
        if self.candidates[place] is not self.stopped:
            self.finish_oldest(self.candidates[place])

    @rule(prompt=consumes(prompts))
    def a_caller_leaves(self, prompt: Prompt) -> None:
        if prompt.number in self.waiting:
            self.line.leave(prompt)
            self.line.leave(prompt)
            self.waiting.discard(prompt.number)

    @rule(place=st.integers(0, 2))
    def one_stops(self, place: int) -> None:
        self.stopped = self.stopped or self.candidates[place]

    @rule(place=st.integers(0, 2))
    def one_is_gone_and_back(self, place: int) -> None:
        for prompt in self.line.abandon(self.candidates[place]):
            assert prompt.number in self.waiting
            self.arrive(prompt)

    @invariant()
    def who_waits_stands_in_one_line_in_the_order_of_turns(self) -> None:
        lines = [candidate.waiting for candidate in self.candidates]
        assert sorted(one.prompt.number for line in lines for one in line) == sorted(self.waiting)
        assert {one.prompt.number for one in self.line} == self.waiting
        assert all(line == sorted(line, key=lambda one: one.order) for line in lines)

    @invariant()
    def nothing_is_sent_beyond_credit(self) -> None:
        for candidate in self.candidates:
            tokens = [booking.num_new_tokens for booking in candidate.open.values()]
            assert candidate.num_open_tokens == sum(tokens)
            assert candidate.num_open_tokens <= CREDIT or len(tokens) == 1
            assert candidate.num_open_blocks == len(tokens)
            assert candidate.busy_s(self.now) >= 0.0
            assert tokens or candidate.busy_s(self.now) == 0.0

    def teardown(self) -> None:
        """Whoever waits is served by those that still answer, and soon."""
        for _ in range(self.num_arrived + 30):
            self.now += 60.0
            for candidate in self.candidates:
                if candidate is not self.stopped:
                    self.finish_oldest(candidate)
        assert not self.waiting


LineMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25, deadline=None)
test_each_prompt_leaves_the_line_once_and_none_waits_for_ever = LineMachine.TestCase


def test_who_is_busy_for_longer_than_all_others_lines_looks_nobody_up() -> None:
    """Two with credit and no line of their own; a third has two prompts in its line."""
    candidates = CandidateTable(
        Candidate(name, ConstantRate(tokens_per_s=TOKENS_PER_S), credit_tokens=CREDIT)
        for name in NAMES
    ).all
    looked_up: list[str] = []

    def held_by(prompts: Sequence[Prompt], candidate: Candidate) -> Sequence[int]:
        looked_up.append(candidate.name)
        return [0] * len(prompts)

    line = PrefillQueue(Cost(), held_by)
    full, busy, soon_free = candidates
    sizes = ((full, CREDIT), (busy, CREDIT - 1000), (busy, 999), (soon_free, 2000))
    for number, (candidate, num_tokens) in enumerate(sizes):
        candidate.book(Prompt(number=number, num_tokens=num_tokens, arrived_s=0.0), 0, now=0.0)
    only = candidates.at(np.array([0]))
    waiting = [Prompt(number=number, num_tokens=1000, arrived_s=0.0) for number in (7, 8)]
    for prompt in waiting:
        assert line.arrive(prompt, only, PrefixHits(np.zeros(1)), 0.0) is None
    busy.observe(10_000, 0, now=0.0)

    assert line.next(candidates, 0.0) == (soon_free, waiting[1])
    assert set(looked_up) == {soon_free.name}


def test_a_free_replica_gets_whom_all_that_wait_gain_most_by_however_many_there_are() -> None:
    """The first prompts that are looked up are not always the best."""
    draw = random.Random(7)
    for _ in range(20):
        rates = [ConstantRate(tokens_per_s=draw.uniform(500, 2000)) for _ in range(12)]
        rates[0] = ConstantRate(tokens_per_s=200.0)  # nobody gains who is to be computed whole
        table = CandidateTable(
            Candidate(f"{number}", rate, credit_tokens=1) for number, rate in enumerate(rates)
        ).all
        held = [5000 if draw.random() < 0.03 else 0 for _ in range(99)]
        line = PrefillQueue(
            Cost(),
            lambda prompts, _, held=held: [  # type: ignore[misc]
                min(held[one.number], one.num_tokens - 1) for one in prompts
            ],
        )
        for number in range(84):
            busy = table.at(np.array([1 + number % 11]))
            prompt = Prompt(number=number, num_tokens=draw.randint(1, 5000), arrived_s=0.0)
            if line.arrive(prompt, busy, PrefixHits(np.zeros(1)), 0.0) is not None:
                busy[0].book(prompt, 0, 0.0)

        gain_by_number: dict[int, float] = {}
        for candidate in list(table)[1:]:
            over_s = candidate.busy_s(0.0)
            for waiting in candidate.waiting[:MAX_OFFERED]:
                over_s += waiting.work_s
                prompt = waiting.prompt
                work_s = rates[0].prefill_s(prompt.num_tokens, min(held[prompt.number], 4999))
                extra_s = max(work_s - waiting.work_s, 0.0)
                gain_by_number[prompt.number] = over_s - work_s - extra_s * len(line) / len(table)
        found = line.free(table[0], table, 0.0)

        assert len(gain_by_number) > 2 * LOOKED_AT
        best_s = max(gain_by_number.values())
        assert (found is not None) == (best_s > 0.0)
        assert found is None or gain_by_number[found.number] == pytest.approx(best_s)
