"""How much is drafted on machines whose steps take known times, where drafts are so often right."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random

from baton.core.messages import SamplingParams
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.speculation.draft_budget import PayingBudget
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
    assert machine.run(4000) > 0.97
    assert machine.budget.num_pauses > 1

    machine.share_right = 0.9
    machine.run(3000)
    assert machine.run(1000) > 1.5


def test_steps_without_drafts_that_become_quicker_end_drafts_that_do_not() -> None:
    machine = Machine(1, lambda _, drafted: 30e-3 if drafted else 25e-3, 0.9)
    assert machine.run(2000) > 1.5

    machine.step_time = lambda _, drafted: 30e-3 if drafted else 3e-3
    machine.run(4000)
    assert machine.run(4000) > 0.97


def test_of_all_drafts_as_many_rows_are_taken_as_pay() -> None:
    """Half of the rows are hopeless: only the others are run."""
    machine = Machine(8, lambda requests, drafted: 10e-3 + 0.5e-3 * drafted, 0.9)
    machine.run(500)
    hopes = [0.9] * 8 + [0.05] * 8

    assert machine.budget.num_rows(8, hopes) == 8


def test_survival_follows_what_came_of_drafts_that_were_as_sure() -> None:
    survival = Survival()
    request = Request("r", [1], sampling=SamplingParams())
    for _ in range(200):
        survival.learn(request, [0.9, 0.9, 0.1], 2)

    sure, unsure = survival.of(request, [0.9]), survival.of(request, [0.1])

    assert sure[0] > 0.95
    assert unsure[0] < 0.1
    assert survival.of(request, [0.9, 0.1])[1] == sure[0] * unsure[0]
