"""How much is drafted on machines whose steps take known times, where drafts are so often right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from random import Random

import pytest

from baton.core.sampling import SamplingParams
from baton.engine.request.request import Ending, Request
from baton.engine.request.step_report import StepReport
from baton.engine.speculation.draft_budget import PayingBudget
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.pause import (
    FIRST_WINDOW,
    MAX_CREDIT,
    MIN_REST,
    TRIAL_SHARE,
    Balance,
    Pause,
)
from baton.engine.speculation.speculation import Speculation
from baton.engine.speculation.survival import Survival

MAX_TOKENS = 8
StepTime = Callable[[int, int], float]
"""Seconds of a pass, by requests and drafted tokens."""


def memory_bound(requests: int, drafted: int) -> float:
    return 10e-3 + 0.05e-3 * (requests + drafted)


def compute_bound(requests: int, drafted: int) -> float:
    return 1e-3 * (requests + drafted)


@dataclass
class Machine:
    """Requests that all get drafts of the same kind, step after step."""

    num_requests: int
    step_time: StepTime
    share_right: float
    hoped: float | None = None
    """The share that they are thought to be right; None: as they are."""
    draft_s: float = 0.0
    """Of each token drafted."""
    budget: PayingBudget = field(default_factory=lambda: PayingBudget(MAX_TOKENS))
    random: Random = field(default_factory=lambda: Random(0))
    seconds: float = 0.0
    num_tokens: int = 0
    num_drafted: int = 0

    def run(self, num_steps: int) -> float:
        """Times the tokens a second of the same machine without drafts."""
        self.seconds, self.num_tokens, self.num_drafted = 0.0, 0, 0
        for _ in range(num_steps):
            self._step()
        plain = self.num_requests / self.step_time(self.num_requests, 0)
        return self.num_tokens / self.seconds / plain

    def _step(self) -> None:
        num, share = self.num_requests, self.share_right
        hoped = share if self.hoped is None else self.hoped
        num_drafted = num_right = depth = 0
        if self.budget.begins(num):
            self.budget.begins_trial()
            depth = self.budget.depth(num, num, hoped if self.draft_s else None)
            hopes = [hoped ** (at + 1) for at in range(depth) for _ in range(num)]
            num_drafted = self.budget.num_rows(num, hopes) if hopes else 0
            for row in range(num):
                length = len(range(row, num_drafted, num))
                right = 0
                while right < length and self.random.random() < share:
                    right += 1
                num_right += right
        draft_s = depth * self.draft_s
        seconds = draft_s + self.step_time(num, num_drafted) * self.random.uniform(0.9, 1.1)
        report = StepReport(
            num_tokens=num,
            num_requests=num,
            num_drafted=num_drafted,
            num_accepted=num_right,
            draft_ms=draft_s * 1e3,
        )
        self.budget.learn(report, seconds)
        self.seconds += seconds
        self.num_tokens += num + num_right
        self.num_drafted += num_drafted


class Saying:
    """A drafter that is as sure of each of its tokens as it is told to be."""

    name = "saying"

    def __init__(self, confidence: float, draft_s: float) -> None:
        self.confidence = confidence
        self.is_costly = draft_s > 0
        self.finds = True
        self.num_asked = 0

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        self.num_asked += max_tokens
        num = max_tokens if self.finds else 0
        return [Draft([0] * num, [self.confidence] * num) for _ in requests]

    def forget(self, request: Request) -> None:
        """It keeps nothing."""


class Loop:
    """The same with all there is: what came of drafts says what is hoped of the next."""

    def __init__(
        self,
        num_requests: int,
        step_time: StepTime,
        share_right: float,
        draft_s: float = 0.0,
        *,
        at_once: bool = False,
    ) -> None:
        """`draft_s` is of each token drafted, or of all of them `at_once`."""
        self.step_time, self.share_right, self.draft_s = step_time, share_right, draft_s
        self.at_once = at_once
        self.drafter = Saying(0.8, draft_s)
        self.speculation = Speculation(self.drafter, PayingBudget(MAX_TOKENS, at_once=at_once))
        self.running = [decoding(str(i)) for i in range(num_requests)]
        self.random = Random(0)
        self.reading_s = 0.0
        """Of drafting, once: prompts are read first."""
        self.recall_s = 0.0
        """Of each step that drafts: there is always a new prompt to be read first."""
        self.num_prompt_tokens = 0
        """Computed in each step beside."""
        self.seconds = 0.0
        self.num_tokens = self.num_drafted = 0

    def run(self, num_steps: int) -> float:
        """Times the tokens a second of the same machine without drafts."""
        self.seconds, self.num_tokens, self.num_drafted = 0.0, 0, 0
        for _ in range(num_steps):
            self.step()
        num, prompts = len(self.running), self.num_prompt_tokens
        return self.num_tokens / self.seconds / (num / self.step_time(num, prompts))

    def step(self) -> float:
        """Seconds."""
        self.drafter.num_asked = 0
        drafts = self.speculation.draft(self.running)
        num, num_right = len(self.running), 0
        for request, draft in drafts.items():
            right = 0
            while right < len(draft) and self.random.random() < self.share_right:
                right += 1
            self.speculation.verified(request, len(draft), right)
            num_right += right
        num_drafted, prompts = sum(map(len, drafts.values())), self.num_prompt_tokens
        num_passes = min(1, self.drafter.num_asked) if self.at_once else self.drafter.num_asked
        draft_s = num_passes * self.draft_s
        if draft_s:
            draft_s, self.reading_s = draft_s + self.reading_s, 0.0
        pass_s = self.step_time(num, num_drafted + prompts)
        recall_s = self.recall_s if self.drafter.num_asked else 0.0
        seconds = recall_s + draft_s + pass_s * self.random.uniform(0.9, 1.1)
        report = StepReport(
            num_tokens=num + prompts,
            num_requests=num + bool(prompts),
            num_drafted=num_drafted,
            num_accepted=num_right,
            num_running=num,
            recall_ms=recall_s * 1e3,
            draft_ms=draft_s * 1e3,
        )
        self.speculation.learn(report, seconds)
        self.seconds += seconds
        self.num_tokens += num + num_right
        self.num_drafted += num_drafted
        return seconds

    def answer(self, name: str, share_right: float) -> float:
        """The same over 127 tokens of a new request, whose drafts are so often right; others have
        gone."""
        for request in self.running:
            self.speculation.forget(request)
        self.running, self.share_right = [decoding(name)], share_right
        self.seconds, self.num_tokens = 0.0, 0
        while self.num_tokens < 127:
            self.step()
        return self.num_tokens * self.step_time(1, 0) / self.seconds


def demo_time(requests: int, drafted: int) -> float:
    """Prices as the demo's on a CPU: a row costs two thirds of what a request does."""
    planned_s = 0.1e-3 + 0.015e-3 * requests if drafted else 0.0
    return 0.85e-3 + 0.13e-3 * requests + 0.09e-3 * drafted + planned_s


def decoding(name: str) -> Request:
    request = Request(name, [1, 2], sampling=SamplingParams())
    request.num_computed, request.scheduled_at = 1, 0.0
    request.ending = Ending(frozenset(), 1 << 30)
    return request


def test_rows_that_are_nearly_free_are_filled_with_drafts() -> None:
    assert Machine(1, memory_bound, 0.8).run(2000) > 3.5
    assert Machine(16, memory_bound, 0.8).run(2000) > 2.5


def test_where_rows_cost_what_they_bring_nothing_is_lost() -> None:
    for num_requests in (1, 8, 64):
        for share in (0.0, 0.3, 0.7):
            assert Machine(num_requests, compute_bound, share).run(3000) > 0.99


def test_a_draft_model_that_takes_too_long_is_left_alone() -> None:
    assert Machine(1, memory_bound, 0.6, draft_s=20e-3).run(4000) > 0.99
    assert Machine(1, memory_bound, 0.6, draft_s=0.5e-3).run(2000) > 1.5


def test_drafts_that_are_never_right_are_paused_and_taken_up_again_once_they_are() -> None:
    """Although each is thought to be right: time alone tells."""
    machine = Machine(4, lambda requests, drafted: 10e-3 + 0.2e-3 * drafted, 0.9, hoped=0.9)
    assert machine.run(1000) > 1.5

    machine.share_right = 0.0
    while not machine.budget.is_paused:
        machine.run(1)
    assert machine.run(8000) > 0.99
    assert machine.budget.num_pauses > 1

    machine.share_right = 0.9
    machine.run(6000)
    assert machine.run(1000) > 1.5


@pytest.mark.parametrize("draft_s", [0.0, 0.5e-3])
def test_drafts_that_collapse_are_tried_at_half_a_percent_of_the_time_until_they_recover(
    draft_s: float,
) -> None:
    loop = Loop(4, memory_bound, 0.9, draft_s)
    assert loop.run(200) > 1.2

    loop.share_right = 0.0
    loop.run(1000)  # until what was saved is lost, as far as it may be
    assert loop.speculation.is_collapsed
    assert loop.run(3000) > 0.993

    loop.share_right = 0.9
    loop.run(2000)
    assert loop.run(200) > 1.5
    assert not loop.speculation.is_collapsed


def test_the_time_in_which_prompts_are_read_is_not_what_a_draft_takes() -> None:
    loop = Loop(1, memory_bound, 0.9, 0.5e-3)
    loop.reading_s = 30e-3

    loop.run(40)

    assert loop.run(40) > 2


def test_reading_what_came_with_prompts_ends_no_drafts_that_win_and_prolongs_rests_of_others() -> (
    None
):
    good, bad = Loop(1, memory_bound, 0.9, 0.5e-3), Loop(1, memory_bound, 0.0, 0.5e-3)
    good.recall_s = bad.recall_s = 40e-3

    good.run(500)
    assert good.num_drafted > 1500
    bad.run(200)
    assert bad.run(10_000) > 0.99


def test_a_deep_draft_that_takes_no_longer_than_a_short_one_is_made_deep() -> None:
    """One token would not pay for the pass that drafts it; eight do."""
    assert Loop(1, memory_bound, 0.8, 9e-3, at_once=True).run(1000) > 1.7
    assert Loop(1, memory_bound, 0.8, 9e-3).run(3000) > 0.99


@pytest.mark.parametrize(
    ("num_requests", "share", "draft_s"), [(1, 0.0, 0.1e-3), (16, 0.3, 0.8e-3), (16, 0.7, 0.8e-3)]
)
def test_a_trial_of_drafts_that_lose_costs_less_than_a_fortieth_of_a_short_answer(
    num_requests: int, share: float, draft_s: float
) -> None:
    loop = Loop(num_requests, demo_time, share, draft_s, at_once=True)
    loop.drafter.is_costly = False
    loop.run(5)

    assert min(loop.run(128) for _ in range(16)) > 0.975
    assert loop.speculation.metrics()["speculation_pauses_total"] > 2


def test_an_unlucky_answer_is_paid_from_what_others_saved_and_leaves_the_next_its_drafts() -> None:
    """Shares as of the demo on code: text that repeats itself, and text that does not."""
    loop = Loop(1, demo_time, 0.0)
    loop.answer("first", 0.9)
    shares = [0.9, 0.8, 0.0, 0.9, 0.7, 0.0, 0.0, 0.8] * 4

    times = [loop.answer(str(number), share) for number, share in enumerate(shares)]

    lucky = [won for won, share in zip(times, shares, strict=True) if share]
    assert sum(lucky) / len(lucky) > 1.8
    assert min(lucky) > 1.15
    assert min(times) > 0.85


def test_what_was_saved_is_lost_but_once() -> None:
    loop = Loop(1, demo_time, 0.0)
    for number in range(16):
        loop.answer(f"lucky {number}", 0.9)
    unlucky = [loop.answer(f"unlucky {number}", 0.0) for number in range(128)]

    assert sum(1 / one - 1 for one in unlucky) * 127 < MAX_CREDIT + 2 * 0.005 * 128 * 127
    assert min(unlucky[-64:]) > 0.96


def test_drafts_that_can_win_little_are_tried_seldom() -> None:
    """All right they would win a tenth: they lose a twentieth as much as what could win a lot."""
    loop = Loop(1, lambda _, drafted: 10e-3 + 1e-3 * drafted, 0.0, 7e-3)
    loop.run(100)

    assert loop.run(20_000) > 0.9985


def test_a_draft_model_that_becomes_quick_is_noticed() -> None:
    loop = Loop(1, memory_bound, 0.9, 20e-3)
    assert loop.run(3000) > 0.99

    loop.draft_s = 0.5e-3
    loop.run(8000)
    assert loop.run(200) > 1.5


def test_rests_grow_while_trials_fail_until_drafts_have_won() -> None:
    lost = Balance(
        saved_s=-1.0, spent_s=2.0, plain_s=1.0, num_running=2, num_verified=2, is_refused=False
    )
    won = replace(lost, saved_s=1.0)

    def rest(pause: Pause) -> int:
        """Steps of the next."""
        while not pause.is_on:
            pause.add(lost, lambda: 1.0)
        num_steps = 0
        while pause.is_on:
            pause.rest(1.0)
            num_steps += 1
        return num_steps

    pause = Pause()
    first, second, third, fourth = (rest(pause) for _ in range(4))
    for _ in range(FIRST_WINDOW):
        pause.add(won, lambda: 1.0)

    assert first == pytest.approx(2 / TRIAL_SHARE)
    assert (second, third, fourth) == (2 * first, 4 * first, 4 * first)
    assert rest(pause) == MIN_REST


def test_a_rest_ends_with_those_who_ran_if_drafts_have_saved_what_they_lost() -> None:
    won = Balance(
        saved_s=1.0, spent_s=1.0, plain_s=1.0, num_running=2, num_verified=2, is_refused=False
    )
    lost = replace(won, saved_s=-1.0)
    rich, poor = Pause(), Pause()
    for _ in range(FIRST_WINDOW):
        rich.add(won, lambda: 1.0)

    for pause in (rich, poor):
        while not pause.is_on:
            pause.add(lost, lambda: 1.0)
        pause.left()
        assert pause.is_on
        pause.left()

    assert not rich.is_on
    assert poor.is_on


@pytest.mark.parametrize("has_won", [True, False])
def test_a_late_step_of_drafts_not_worth_a_row_ends_only_those_that_have_not_won(
    has_won: bool,
) -> None:
    won = Balance(
        saved_s=1.0, spent_s=1.0, plain_s=1.0, num_running=2, num_verified=2, is_refused=False
    )
    late = replace(won, saved_s=-1.0, spent_s=2.0, num_verified=0, is_refused=True)
    pause = Pause()

    for balance in (*[won] * (FIRST_WINDOW if has_won else 1), late):
        pause.add(balance, lambda: 1.0)

    assert pause.is_on is not has_won


def test_a_pause_passes_while_steps_are_launched_ahead_and_nobody_is_asked() -> None:
    loop = Loop(4, memory_bound, 0.0)
    while not loop.speculation.is_paused:
        loop.step()

    num_steps = 0
    while loop.speculation.is_paused and num_steps < 10_000:
        loop.speculation.learn(StepReport(num_tokens=4, num_requests=4), 10e-3)
        num_steps += 1

    assert 30 < num_steps < 10_000


def test_a_first_pass_that_compiles_says_nothing_of_the_others() -> None:
    loop = Loop(1, memory_bound, 0.9)
    while not loop.num_drafted:
        loop.step_time = lambda _, drafted: 10e-3 + (5.0 if drafted else 0.0)
        loop.step()
    loop.step_time = memory_bound

    assert loop.run(10) > 2


def test_a_method_that_finds_nothing_is_asked_less_and_keeps_what_it_learnt() -> None:
    loop = Loop(8, memory_bound, 0.9, 0.02e-3)
    loop.drafter.is_costly = False
    loop.run(500)
    loop.drafter.finds = False
    assert loop.run(5000) > 0.99

    loop.drafter.finds = True
    loop.run(500)
    assert loop.run(200) > 1.5
    assert not loop.speculation.is_collapsed


def test_drafts_beside_prompts_are_judged_by_what_rows_cost_there() -> None:
    """Each step computes part of a prompt, so that rows cost what its tokens do."""
    loop = Loop(2, compute_bound, 0.0)
    loop.run(20)
    loop.num_prompt_tokens = 30
    loop.run(300)

    assert loop.run(3000) > 0.99
    assert loop.speculation.metrics()["speculation_pauses_total"] > 0


def test_steps_without_drafts_that_become_quicker_end_drafts_that_do_not() -> None:
    machine = Machine(1, lambda _, drafted: 30e-3 if drafted else 25e-3, 0.9)
    assert machine.run(2000) > 1.5

    machine.step_time = lambda _, drafted: 30e-3 if drafted else 3e-3
    machine.run(4000)
    assert machine.run(4000) > 0.97


@pytest.mark.parametrize(("gain", "num_plain"), [(1.2, 24), (1.8, 6)])
def test_where_drafts_win_little_steps_without_are_measured_often(
    gain: float, num_plain: int
) -> None:
    """One token is drafted in each step, and right."""
    budget = PayingBudget(1)

    def drafts() -> bool:
        if not budget.begins(1):
            budget.learn(StepReport(num_tokens=1, num_requests=1), 10e-3)
            return False
        budget.depth(1, 1, None)
        report = StepReport(num_tokens=1, num_requests=1, num_drafted=1, num_accepted=1)
        budget.learn(report, 20e-3 / gain)
        return True

    for _ in range(200):
        drafts()

    assert sum(not drafts() for _ in range(400)) == pytest.approx(num_plain, abs=2)


def test_steps_of_a_clock_that_stands_still_are_learnt_from() -> None:
    budget = PayingBudget(1)

    for _ in range(40):
        num_drafted = budget.depth(1, 1, None) if budget.begins(1) else 0
        report = StepReport(num_tokens=1, num_requests=1, num_drafted=num_drafted)
        budget.learn(report, 0.0)

    assert num_drafted == 1


def test_of_all_drafts_as_many_rows_are_taken_as_pay() -> None:
    """Half of the rows are hopeless: only the others are run."""
    machine = Machine(8, lambda requests, drafted: 10e-3 + 0.5e-3 * drafted, 0.9)
    machine.run(500)
    hopes = [0.9] * 8 + [0.05] * 8

    assert machine.budget.num_rows(8, hopes) == 8


def test_a_draft_ends_where_the_next_row_needs_a_tile_of_its_own() -> None:
    """On a CPU eight rows are multiplied at once: the request's own, and those of seven drafts."""
    machine = Machine(1, lambda _, drafted: 10e-3 + 0.2e-3 * drafted + 5e-3 * (drafted > 7), 0.8)
    machine.run(2000)

    assert machine.budget.num_rows(1, [0.8**at for at in range(1, 9)]) == 7
    assert machine.run(2000) > 3.2


def test_survival_follows_what_came_of_drafts_that_were_as_sure() -> None:
    survival = Survival()
    request = Request("r", [1], sampling=SamplingParams())
    for _ in range(200):
        survival.learn(request, [0.9, 0.9, 0.1], 2)

    sure, unsure = survival.of(request, [0.9]), survival.of(request, [0.1])

    assert sure[0] > 0.95
    assert unsure[0] < 0.1
    assert survival.of(request, [0.9, 0.1])[1] == sure[0] * unsure[0]
