"""Machines whose steps take known times, and requests whose drafts are so often right."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

from baton.core.sampling import SamplingParams
from baton.engine.request.request import Ending, Request
from baton.engine.request.step_report import StepReport
from baton.engine.speculation.draft_budget import AdaptiveBudget
from baton.engine.speculation.drafter import Draft
from baton.engine.speculation.speculation import Speculation

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
    budget: AdaptiveBudget = field(default_factory=lambda: AdaptiveBudget(MAX_TOKENS))
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
            probabilities = [hoped ** (at + 1) for at in range(depth) for _ in range(num)]
            num_drafted = self.budget.num_rows(num, probabilities) if probabilities else 0
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
        self.speculation = Speculation(self.drafter, AdaptiveBudget(MAX_TOKENS, at_once=at_once))
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
