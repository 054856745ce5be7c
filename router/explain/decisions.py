"""The last few thousand decisions: what was decided for each request, and what happened.

    record(Decision)                   it is on its way, with what was known and predicted
    conclude(number, Outcome)          its first token is there
    finish(number, ...)                its last token is there

regret   the time it took minus the time that the best of the others would have taken, predicted
         anew with what is known once the first token is there; 0 if none would have been sooner

The ring is bounded by number and by age. The number of block names that it keeps is bounded, too:
the oldest decisions lose theirs first, and cannot be captured any more.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import starmap
from typing import NamedTuple

from baton.core.clock import Clock, monotonic
from baton.core.ids import Epoch, ReplicaId, RequestId
from baton.router.fairness.slo import NO_SLO, Slo
from baton.router.replicas.candidate import Candidate

KEPT_S = 3600.0
MAX_KEPT_NAMES = 250_000
"""The most block names kept for all decisions; each has 16 bytes."""


class Considered(NamedTuple):
    """A replica that might have computed the prompt, and what was known of it."""

    replica_id: ReplicaId
    epoch: Epoch
    cost: float
    """The cost in the policy's own unit."""
    num_held_tokens: int
    """Leading tokens of the prompt that it has, will have or can fetch."""
    wait_s: float
    """Predicted: until it begins,"""
    work_s: float
    """to compute what it lacks,"""
    latency_s: float
    """and until that is where it is decoded; what is fetched after the wait counts here, too."""
    corrected_s: float
    """Seconds by which its first tokens had come later than predicted by then, all in all."""
    age_s: float | None
    """Seconds since the replica's last word; None if it has said none."""
    terms: Mapping[str, float]
    """The terms of the cost, if the policy reports them."""

    @property
    def first_token_s(self) -> float:
        """Predicted, from the decision on."""
        return self.wait_s + self.work_s + self.latency_s

    def in_hindsight_s(self, num_tokens: int, candidate: Candidate) -> float:
        """Seconds to the first token, knowing how late the replica was since with what it had to do
        before."""
        wait_s = self.wait_s
        if wait_s:
            wait_s = max(wait_s + candidate.corrected_s - self.corrected_s, 0.0)
        work_s = candidate.speed.prefill_s(num_tokens, self.num_held_tokens)
        return wait_s + work_s + self.latency_s


class DecodeConsidered(NamedTuple):
    """A replica that might have decoded the request, and what that would have cost."""

    replica_id: ReplicaId
    epoch: Epoch
    cost_s: float
    num_held_tokens: int
    """Leading tokens of the prompt that it has or will have."""
    age_s: float | None
    """Seconds since the replica's last word; None if it has said none."""
    terms: Mapping[str, float]
    """The terms of the cost (`decode_costs.py`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The outcome of a decision; seconds are since the request arrived."""

    first_token_s: float
    best_other: ReplicaId | None = None
    """The replica that would have been soonest of the others; None: there was no other."""
    best_other_s: float | None = None
    """When, as predicted with what is known now."""
    num_output_tokens: int = 0
    itl_s: float | None = None
    """Mean from one output token to the next; None: there was one token at most."""
    is_over: bool = False

    @property
    def regret_s(self) -> float:
        if self.best_other_s is None:
            return 0.0
        return max(self.first_token_s - self.best_other_s, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The routing of one attempt of a request, with its reasons."""

    request_id: RequestId
    attempt: int
    owner: str
    """The caller's owner id; only callers of the same owner may read the decision."""
    decided_at: float
    """Unix time."""
    num_tokens: int
    num_prefill_tokens: int
    """Prompt tokens that had to be computed."""
    names: Sequence[bytes] | None = ()
    """Names of the prompt's whole blocks; None: forgotten."""
    block_size: int = 1
    adapter: str = ""
    """The LoRA adapter that it is computed with; empty: none."""
    session: str = ""
    slo: Slo = NO_SLO
    policy: str
    reason: str
    computes: ReplicaId
    """The replica that computes the prompt."""
    decodes: ReplicaId
    considered: Sequence[Considered]
    num_candidates: int
    """The cheapest of which are in `considered`."""
    decode_considered: Sequence[DecodeConsidered] = ()
    """The cheapest of those that might have decoded it, the one that does first; none, if they were
    not compared."""
    waited_s: float
    """Seconds the request waited for a place, of which"""
    in_line_s: float
    """was spent in the line for a replica that was busy: the choice was bound that late."""
    foreseen_s: float
    """Time to first token, as predicted when it was asked for."""
    predicted_s: float
    """Time to first token, as predicted when it was sent."""
    predicted_itl_s: float | None = None
    """Seconds from one output token to the next; None while its decode replica has measured no
    steps."""
    outcome: Outcome | None = None
    """None until its first token is there."""

    @property
    def public_id(self) -> str:
        """The request id that the client knows; choices of a request share it."""
        return self.request_id.rpartition("-")[0] or self.request_id


class Decisions:
    """Ages are by `clock`: Unix time is set back now and then, and is only reported."""

    def __init__(self, max_kept: int, clock: Clock = monotonic) -> None:
        self.max_kept = max_kept
        self._clock = clock
        self._by_number: OrderedDict[int, Decision] = OrderedDict()
        self._outcome_by_number: dict[int, Outcome] = {}
        """Stored apart from decisions, because few are ever requested, and only those are
        copied."""
        self._recorded_s: deque[float] = deque()
        """When, by the clock, in the same order."""
        self._numbers_by_id: dict[str, list[int]] = {}
        self._num_recorded = 0
        self._num_names = 0
        self._first_named = 0
        """The number of the oldest decision that has its names still."""

    def __len__(self) -> int:
        return len(self._by_number)

    def __iter__(self) -> Iterator[Decision]:
        """The oldest first, as they are now."""
        self._forget()
        outcomes = self._outcome_by_number
        return starmap(
            _with_outcome, [(one, outcomes.get(number)) for number, one in self._by_number.items()]
        )

    def record(self, decision: Decision) -> int:
        """Keep it; the number says which one it is from now on."""
        number = self._num_recorded
        self._num_recorded += 1
        self._by_number[number] = decision
        self._recorded_s.append(self._clock())
        self._numbers_by_id.setdefault(decision.public_id, []).append(number)
        self._num_names += len(decision.names or ())
        self._forget()
        return number

    def conclude(self, number: int, outcome: Outcome) -> None:
        """Nothing happens to one that is forgotten."""
        if number in self._by_number:
            self._outcome_by_number[number] = outcome

    def finish(self, number: int, *, num_output_tokens: int, itl_s: float | None) -> None:
        """Its last token is there, or it was ended. One without any token came to nothing."""
        outcome = self._outcome_by_number.get(number)
        if outcome is not None:
            self._outcome_by_number[number] = replace(
                outcome, num_output_tokens=num_output_tokens, itl_s=itl_s, is_over=True
            )

    def of(self, public_id: str) -> tuple[Decision, ...]:
        """The decisions for all choices and attempts of a request, in the order in which they were
        made."""
        self._forget()
        numbers = self._numbers_by_id.get(public_id, ())
        outcomes = self._outcome_by_number
        return tuple(
            _with_outcome(self._by_number[number], outcomes.get(number)) for number in numbers
        )

    def _forget(self) -> None:
        now = self._clock()
        while self._by_number:
            number, oldest = next(iter(self._by_number.items()))
            if len(self._by_number) <= self.max_kept and now - self._recorded_s[0] <= KEPT_S:
                break
            self._recorded_s.popleft()
            del self._by_number[number]
            self._outcome_by_number.pop(number, None)
            self._num_names -= len(oldest.names or ())
            left = self._numbers_by_id[oldest.public_id]
            left.remove(number)
            if not left:
                del self._numbers_by_id[oldest.public_id]
        while self._num_names > MAX_KEPT_NAMES:
            oldest_named = self._by_number.get(self._first_named)
            if oldest_named is not None and oldest_named.names is not None:
                self._num_names -= len(oldest_named.names)
                self._by_number[self._first_named] = replace(oldest_named, names=None)
            self._first_named += 1


def _with_outcome(decision: Decision, outcome: Outcome | None) -> Decision:
    return decision if outcome is None else replace(decision, outcome=outcome)
