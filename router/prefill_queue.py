"""Prompts that wait in the gateway for the replica of their choice, and can still go elsewhere.

    arrive(prompt) -> the candidate to send it to, now       its choice is free, or binds at once
                   -> None: it waits                         in the line of its choice
    free(candidate) -> the prompt to send there, now         the next of its own line,
                                                             or one that is better off here
    next(candidates) -> the same, for any candidate with credit
    leave(prompt)                                       refused, cancelled or out of time

A choice is reconsidered when its candidate becomes free: what the prompt lacks there may have
changed, and so may whose turn it is. Nothing is queued in a replica beyond its credit, so one that
stops holds up what it computes, and nothing else. Pure except for its own books; `now` is passed
in.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from baton.router.cache.matches import Lookup
from baton.router.offers import Offers
from baton.router.policies.routing_policy import PrefixHits, RoutingPolicy, cheapest
from baton.router.prompt import Prompt
from baton.router.replicas.candidate import Candidate, Waiting
from baton.router.replicas.candidates import Candidates

LOOK_AGAIN_S = 0.25
"""A candidate at which no prompt would gain is offered others again when its own state has changed,
or after this time, because late replicas change the prospects of others only."""

HeldBy = Callable[[Sequence[Prompt], Candidate], Sequence[int]]
"""How many leading tokens of each prompt a candidate has."""
LookupAt = Callable[[Candidate], Lookup | None]
"""Returns the arguments for compiled look-ups of all prompts in a line; None if these are not
possible."""


def nowhere(candidate: Candidate) -> Lookup | None:
    """A `LookupAt` of caches that no compiled code knows."""
    return None


class PrefillQueue:
    def __init__(
        self, policy: RoutingPolicy, held_by: HeldBy, lookup_at: LookupAt = nowhere
    ) -> None:
        self._policy = policy
        self._held_by = held_by
        self._lookup_at = lookup_at
        self._waiting: dict[int, Waiting] = {}
        """Prompts in line, by number."""

    def go_by(self, policy: RoutingPolicy) -> None:
        """Choose by `policy` from now on; prompts in line keep the candidate that they wait for."""
        self._policy = policy

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Waiting]:
        """Every prompt in line, in no order of their turns."""
        return iter(tuple(self._waiting.values()))

    def arrive(
        self,
        prompt: Prompt,
        candidates: Candidates,
        held: PrefixHits,
        now: float,
        place: int | None = None,
    ) -> int | None:
        """Choose among `candidates`, at least one; `place`: that of the cheapest, if it is known.

        The place of the one to send it to.
        """
        turns = self._policy.turns
        if place is None:
            costs = self._policy.costs(prompt, candidates, held, now)
            place = cheapest(prompt, candidates, costs)
        candidate, num_held = candidates[place], int(held.usable[place])
        if turns is None or (not candidate.waiting and candidate.takes(prompt, num_held)):
            self._policy.placed(prompt, candidate)
            return place
        work_s = candidate.speed.prefill_s(prompt.num_tokens, num_held)
        due_s = turns.due_s(prompt, work_s, candidate.line_s, now)
        num_fetched = num_held if num_held > held.tokens[place] else 0
        waiting = Waiting(prompt, candidate, work_s, due_s, num_fetched)
        self._waiting[prompt.number] = waiting
        candidate.add(waiting)
        return None

    def next(self, candidates: Candidates, now: float) -> tuple[Candidate, Prompt] | None:
        """The prompt that goes now, and where. Call again until there is none."""
        if not self._waiting:
            return None
        offers = Offers(candidates, len(self), now)
        for place in candidates.has_credit.nonzero()[0].tolist():
            candidate = candidates[place]
            if not candidate.waiting and _was_asked(candidate, now):
                continue  # most of those that have nothing to do
            prompt = self._free(candidate, offers)
            if prompt is not None:
                return candidate, prompt
        return None

    def free(self, candidate: Candidate, candidates: Candidates, now: float) -> Prompt | None:
        """The prompt to send to `candidate`, which has credit. Call again until there is none."""
        offers = Offers(candidates, len(self), now)
        return self._free(candidate, offers) if candidate.has_credit else None

    def _free(self, candidate: Candidate, offers: Offers) -> Prompt | None:
        self._look_again(candidate, offers.now)
        first = candidate.waiting[0] if candidate.waiting else None
        if first is None:
            first = self._offer(candidate, offers)
        if first is None:
            return None
        if not candidate.takes_any_prompt:
            [num_held] = self._usable([first], candidate)
            if not candidate.takes(first.prompt, num_held):
                return None
        self.leave(first.prompt)
        self._policy.placed(first.prompt, candidate)
        return first.prompt

    def choice(self, prompt: Prompt) -> Candidate:
        """The candidate that a prompt waits for."""
        return self._waiting[prompt.number].candidate

    def num_before(self, prompt: Prompt) -> int:
        """Prompts before it: those its candidate computes, and those in the candidate's line."""
        waiting = self._waiting[prompt.number]
        candidate = waiting.candidate
        return len(candidate.open) + candidate.waiting.index(waiting)

    def foreseen_s(self, prompt: Prompt, now: float) -> float:
        """Seconds until a waiting prompt is computed, if nothing changes."""
        waiting = self._waiting[prompt.number]
        return waiting.candidate.busy_s(now) + waiting.candidate.ahead_s(waiting.due_s)

    def at_once_s(self, prompt: Prompt, now: float) -> float:
        """Seconds until a prompt in line is computed there, if no later one passes it."""
        waiting = self._waiting[prompt.number]
        candidate = waiting.candidate
        return candidate.busy_s(now) + candidate.ahead_s(prompt.arrived_s) + waiting.work_s

    def leave(self, prompt: Prompt) -> None:
        """Safe to repeat."""
        waiting = self._waiting.pop(prompt.number, None)
        if waiting is not None:
            waiting.candidate.remove(waiting)

    def abandon(self, candidate: Candidate) -> tuple[Prompt, ...]:
        """The candidate is gone: take the prompts that wait for it out of line, and return them."""
        left = tuple(waiting.prompt for waiting in candidate.waiting)
        for prompt in left:
            self.leave(prompt)
        return left

    def _look_again(self, candidate: Candidate, now: float) -> None:
        turns = self._policy.turns
        if turns is None or not candidate.waiting:
            return
        line_s = candidate.line_s
        held = self._usable(candidate.waiting, candidate)
        for waiting, num_held in zip(candidate.waiting, held, strict=True):
            waiting.work_s = candidate.speed.prefill_s(waiting.prompt.num_tokens, num_held)
            waiting.due_s = turns.due_s(waiting.prompt, waiting.work_s, line_s, now)
        candidate.sort()

    def _usable(self, waiting: Sequence[Waiting], candidate: Candidate) -> Sequence[int]:
        """Leading tokens of each that need not be computed there: those that could be fetched for
        another candidate can be fetched for this one."""
        held = self._held_by([one.prompt for one in waiting], candidate)
        return [max(num_held, one.num_fetched) for num_held, one in zip(held, waiting, strict=True)]

    def _offer(self, candidate: Candidate, offers: Offers) -> Waiting | None:
        """The prompt that is better off here than in another's line, unless that was asked just
        now."""
        if _was_asked(candidate, offers.now):
            return None
        found = self._better_off(candidate, offers)
        candidate.last_offer = candidate.version if found is None else -1, offers.now
        return found

    def _better_off(self, candidate: Candidate, offers: Offers) -> Waiting | None:
        lookup = self._lookup_at(candidate)
        number = None if lookup is None else offers.number_for(candidate, lookup)
        if number is None:
            return offers.best_for(candidate, self._usable)
        return None if number < 0 else self._waiting[number]


def _was_asked(candidate: Candidate, now: float) -> bool:
    """Whether no prompt would gain there, and nothing has changed since."""
    version, asked_s = candidate.last_offer
    return version == candidate.version and now < asked_s + LOOK_AGAIN_S
