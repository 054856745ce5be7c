"""Prompts that wait in the gateway for the replica of their choice, and can still go elsewhere.

    arrive(prompt) -> the candidate to send it to, now       its choice is free, or binds at once
                   -> None: it waits                         in the line of its choice
    free(candidate) -> the prompt to send there, now         the next of its own line,
                                                             or one that is better off here
    leave(prompt)                                       refused, cancelled or out of time

A choice is looked at again when its candidate is free: what the prompt lacks there may have
changed, and so may whose turn it is. Nothing is queued in a replica beyond its credit, so one that
stops holds up what it computes, and nobody else. Pure but for its own books; `now` is handed in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from baton.router.candidate import Candidate, Waiting
from baton.router.prompt import Prompt
from baton.router.routing_policy import Held, RoutingPolicy, cheapest

MAX_OFFERED = 8
"""Of each line, the first few are offered to a candidate that has none of its own."""

HeldBy = Callable[[Prompt, Candidate], int]
"""How many leading tokens of a prompt a candidate has."""


class Line:
    def __init__(self, policy: RoutingPolicy, held_by: HeldBy) -> None:
        self._policy = policy
        self._held_by = held_by
        self._waiting: dict[int, Waiting] = {}
        """By the prompt's number."""

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """In no order of their turns."""
        return iter(tuple(self._waiting.values()))

    def arrive(
        self,
        prompt: Prompt,
        candidates: Sequence[Candidate],
        held: Held,
        now: float,
        costs: Sequence[float] | None = None,
    ) -> Candidate | None:
        """Choose among `candidates`, at least one, by `costs` if they are known already."""
        turns = self._policy.turns
        if costs is None:
            costs = self._policy.costs(prompt, candidates, held, now)
        place = cheapest(prompt, candidates, costs)
        candidate = candidates[place]
        if turns is None or (not candidate.waiting and candidate.takes(prompt, held.tokens[place])):
            self._policy.placed(prompt, candidate)
            return candidate
        work_s = candidate.speed.prefill_s(prompt.num_tokens, held.tokens[place])
        waiting = Waiting(prompt, candidate, work_s, turns.due_s(prompt, work_s, candidate.line_s))
        self._waiting[prompt.number] = waiting
        candidate.add(waiting)
        return None

    def free(
        self, candidate: Candidate, candidates: Sequence[Candidate], now: float
    ) -> Prompt | None:
        """Whom to send to `candidate`, which has credit. Asked again until there is nobody."""
        if not candidate.has_credit:
            return None
        self._look_again(candidate)
        first = candidate.waiting[0] if candidate.waiting else None
        if first is None:
            first = self._better_off(candidate, candidates, now)
        if first is None:
            return None
        num_held = self._held_by(first.prompt, candidate)
        if not candidate.takes(first.prompt, num_held):
            return None
        self.leave(first.prompt)
        self._policy.placed(first.prompt, candidate)
        return first.prompt

    def num_before(self, prompt: Prompt) -> int:
        """In the line of its choice, or there already."""
        waiting = self._waiting[prompt.number]
        candidate = waiting.candidate
        return len(candidate.open) + candidate.waiting.index(waiting)

    def foreseen_s(self, prompt: Prompt, now: float) -> float:
        """Until a prompt in line is computed, if all goes on as it stands."""
        waiting = self._waiting[prompt.number]
        return waiting.candidate.busy_s(now) + waiting.candidate.ahead_s(waiting.due_s)

    def leave(self, prompt: Prompt) -> None:
        """Safe to repeat."""
        waiting = self._waiting.pop(prompt.number, None)
        if waiting is not None:
            waiting.candidate.remove(waiting)

    def abandon(self, candidate: Candidate) -> tuple[Prompt, ...]:
        """Nobody waits for it any more, who is returned: it is gone."""
        left = tuple(waiting.prompt for waiting in candidate.waiting)
        for prompt in left:
            self.leave(prompt)
        return left

    def _look_again(self, candidate: Candidate) -> None:
        turns = self._policy.turns
        if turns is None:
            return
        line_s = candidate.line_s
        for waiting in candidate.waiting:
            num_held = self._held_by(waiting.prompt, candidate)
            waiting.work_s = candidate.speed.prefill_s(waiting.prompt.num_tokens, num_held)
            waiting.due_s = turns.due_s(waiting.prompt, waiting.work_s, line_s)
        candidate.sort()

    def _better_off(
        self, candidate: Candidate, candidates: Sequence[Candidate], now: float
    ) -> Waiting | None:
        """The prompt in another's line that gains most, with what it costs all others taken off.

        More work here than there delays everybody who waits.
        """
        best, most_s = None, candidate.busy_s(now)
        num_waiting = len(self._waiting)
        for other in candidates:
            before_s = other.busy_s(now) if other.waiting else 0.0
            for waiting in islice(other.waiting, MAX_OFFERED):
                before_s += waiting.work_s  # would be over there, after those before it
                num_held = self._held_by(waiting.prompt, candidate)
                work_s = candidate.speed.prefill_s(waiting.prompt.num_tokens, num_held)
                extra_s = max(work_s - waiting.work_s, 0.0)
                gain_s = before_s - work_s - extra_s * num_waiting / len(candidates)
                if gain_s > most_s:
                    best, most_s = waiting, gain_s
        return best
