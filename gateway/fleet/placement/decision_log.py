"""Records where each attempt went, follows it, and measures the errors of predictions.

    sent --> FollowedDecision --deliver--> first token: regret, prediction error
                              --end-----> time between tokens, and its error

Estimates for new requests (`estimate`) use what it has measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from baton.core.clock import Clock
from baton.core.ids import Epoch
from baton.core.messages import GenerateRequest, Receipt
from baton.core.replicas import Capacity
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.requests.generations.generation import Estimate
from baton.router.explain.decisions import Considered, Decision, Decisions, Outcome
from baton.router.fairness.slo import NO_SLO, ObjectiveOutcome
from baton.router.placement import Placement, PlacementRequest
from baton.router.placer import PredictedPlacement
from baton.router.recent import Recent
from baton.router.speeds.prediction_errors import PredictionErrors

TYPICAL_WEIGHT = 0.05
"""Weight of the latest observation in the moving means of prompt work and of tokens per step."""
MAX_REPLICAS = 4096


class FirstToken:
    """The time to first token of one request over all its attempts: predicted once, measured once.
    A request that its client gave up counts too, or only fast ones would be measured."""

    def __init__(self, errors: PredictionErrors, clock: Clock) -> None:
        self._errors = errors
        self._clock = clock
        self._asked_s = 0.0
        self._foreseen_s: float | None = None
        """None before its first attempt is sent, and once it is over."""
        self._was_foreseen = False

    def foresee(self, seconds: float, asked_s: float) -> None:
        """Only the first call counts: later predictions are not of the whole time."""
        if not self._was_foreseen:
            self._was_foreseen = True
            self._foreseen_s, self._asked_s = seconds, asked_s

    def comes(self) -> None:
        """Safe to repeat."""
        if self._foreseen_s is not None:
            self._errors.observe(self._foreseen_s, self._clock() - self._asked_s)
            self._foreseen_s = None

    def never_comes(self) -> None:
        """The request is no longer waited for. Safe to repeat, and after the first token came. If
        it is already later than predicted, that counts as a measurement.
        """
        foreseen_s, self._foreseen_s = self._foreseen_s, None
        waited_s = self._clock() - self._asked_s
        if foreseen_s is not None and waited_s > foreseen_s:
            at_least_s = self._errors.interval(foreseen_s).high
            self._errors.observe(foreseen_s, max(waited_s, at_least_s))


@dataclass(frozen=True, slots=True)
class PlacementRecord:
    """One attempt: its prediction and what came of it."""

    owner: str
    at_s: float
    queued_s: float
    """Predicted seconds until it is admitted."""
    first_token: FirstToken
    """The request's time to first token, shared by its attempts."""
    kept: ObjectiveOutcome = field(default_factory=lambda: ObjectiveOutcome(NO_SLO, 0.0))
    """Whether its objective is met, shared by its attempts."""


class DecisionLog:
    def __init__(
        self,
        fleet: Fleet,
        policy: str,
        max_kept: int,
        clock: Clock,
        wall_clock: Callable[[], float] = time.time,
    ) -> None:
        self.decisions = Decisions(max_kept, clock)
        self.ttft_errors = PredictionErrors()
        self.itl_errors = PredictionErrors()
        self.clock = clock
        self._fleet = fleet
        self.policy = policy
        self._wall_clock = wall_clock
        self._per_step_by_epoch: Recent[Epoch, float] = Recent(MAX_REPLICAS)
        """Mean tokens of a request per decode step, by replica: above 1 with speculation."""
        self._typical_s = 0.0
        self._num_received = 0

    def sent(
        self, asked: PlacementRecord, request: GenerateRequest, placement: Placement
    ) -> FollowedDecision:
        """Record an attempt that was sent."""
        prompt, chosen = placement.prompt, placement.considered[0]
        self._num_received += 1
        weight = max(TYPICAL_WEIGHT, 1 / self._num_received)
        self._typical_s += (chosen.work_s - self._typical_s) * weight
        waited_s = self.clock() - asked.at_s
        decision = Decision(
            request_id=request.request_id,
            attempt=request.attempt,
            owner=asked.owner,
            decided_at=self._wall_clock(),
            num_tokens=prompt.num_tokens,
            num_prefill_tokens=placement.num_prefill_tokens,
            names=prompt.names,
            block_size=prompt.block_size,
            adapter=request.adapter,
            session=prompt.session,
            slo=asked.kept.slo,
            policy=self.policy,
            reason=placement.reason,
            computes=chosen.replica_id,
            decodes=placement.decode.replica_id,
            considered=placement.considered,
            num_candidates=placement.num_candidates,
            decode_considered=placement.decode_considered,
            waited_s=waited_s,
            in_line_s=placement.in_line_s,
            foreseen_s=asked.queued_s + placement.foreseen_s,
            predicted_s=waited_s + chosen.first_token_s,
            predicted_itl_s=self._itl_s(placement.decode.epoch, prompt.num_tokens),
        )
        number = self.decisions.record(decision)
        if request.pooling is None:  # else the request has no output
            asked.first_token.foresee(decision.foreseen_s, asked.at_s)
        return FollowedDecision(self, number, decision, asked)

    def best_other(self, decision: Decision) -> tuple[Considered, float] | None:
        """The other replica that would have been the soonest in hindsight, and its seconds from the
        decision to the first token."""
        found: list[tuple[float, Considered]] = []
        for other in decision.considered[1:]:
            candidate = self._fleet.loads.candidate(other.epoch)
            if candidate is not None:
                found.append((other.in_hindsight_s(decision.num_tokens, candidate), other))
        if not found:
            return None
        seconds, best = min(found, key=lambda one: one[0])
        return best, seconds

    def queued_s(self, num_before: int, num_replicas: int) -> float:
        """Seconds until `num_before` requests are admitted, if they are like earlier ones."""
        return num_before * self._typical_s / max(num_replicas, 1)

    def estimate(
        self, asked: PlacementRequest, outlook: PredictedPlacement, queued_s: float
    ) -> Estimate:
        taken = outlook.taken
        num_cached = min(taken.num_held_tokens, asked.num_tokens - 1)
        itl_s = self._itl_s(outlook.decode.info.epoch, asked.num_tokens)
        spread = _spread(outlook.computes.capacity)
        return Estimate(
            num_cached_tokens=num_cached,
            num_prefill_tokens=asked.num_tokens - num_cached,
            computes=taken.replica_id,
            decodes=outlook.decode.info.replica_id,
            wait_s=queued_s + taken.wait_s,
            work_s=taken.work_s,
            ttft_s=self.ttft_errors.interval(queued_s + taken.first_token_s, spread),
            itl_s=None
            if itl_s is None
            else self.itl_errors.interval(itl_s, _spread(outlook.decode.capacity)),
        )

    def observe(self, receipt: Receipt, decode: Epoch) -> None:
        """Learn the tokens per step at `decode` from the receipt of a request that ended there."""
        num_steps = receipt.output_tokens - receipt.accepted_tokens - 1
        if num_steps > 0:
            per_step = (receipt.output_tokens - 1) / num_steps
            before = self._per_step_by_epoch.get(decode) or per_step
            moved = before + TYPICAL_WEIGHT * (per_step - before)
            self._per_step_by_epoch.put(decode, moved)

    def _itl_s(self, decode: Epoch, num_tokens: int) -> float | None:
        """Seconds between tokens: the replica's step time divided by its tokens per step."""
        step_s = _step_s(self._fleet.link(decode).capacity, num_tokens)
        return None if step_s is None else step_s / (self._per_step_by_epoch.get(decode) or 1.0)


class FollowedDecision:
    def __init__(
        self, log: DecisionLog, number: int, decision: Decision, asked: PlacementRecord
    ) -> None:
        self._log = log
        self._number = number
        self._decision = decision
        self._asked = asked
        self._first_s = self._last_s = 0.0
        self._num_tokens = self._num_at_first = 0
        self._is_over = False
        self._receipt: tuple[Receipt, Epoch] | None = None

    def deliver(self, num_tokens: int) -> None:
        """Count `num_tokens` further tokens."""
        now = self._log.clock()
        if not self._num_tokens:
            self._first_s, self._num_at_first = now, num_tokens
            self._conclude(now - self._asked.at_s)
        self._num_tokens += num_tokens
        self._last_s = now
        self._asked.kept.deliver(num_tokens, now)

    def observe(self, receipt: Receipt, decode: Epoch) -> None:
        """Take D's receipt of the attempt; the last one counts."""
        self._receipt = receipt, decode

    def end(self) -> None:
        """The attempt is over. Safe to repeat."""
        if self._is_over or not self._num_tokens:
            return
        self._is_over = True
        if self._receipt is not None:
            self._log.observe(*self._receipt)
        num_gaps = self._num_tokens - self._num_at_first
        itl_s = (self._last_s - self._first_s) / num_gaps if num_gaps else None
        predicted_s = self._decision.predicted_itl_s
        if itl_s is not None and predicted_s is not None:
            self._log.itl_errors.observe(predicted_s, itl_s)
        self._log.decisions.finish(self._number, num_output_tokens=self._num_tokens, itl_s=itl_s)

    def _conclude(self, first_token_s: float) -> None:
        decision, other = self._decision, self._log.best_other(self._decision)
        self._log.decisions.conclude(
            self._number,
            Outcome(
                first_token_s=first_token_s,
                best_other=None if other is None else other[0].replica_id,
                best_other_s=None if other is None else decision.waited_s + other[1],
            ),
        )
        self._asked.first_token.comes()


def _step_s(capacity: Capacity | None, num_tokens: int) -> float | None:
    """Seconds of a decode step with one more request of `num_tokens`; None if no steps were
    measured."""
    if capacity is None or capacity.step_times is None or not capacity.step_times.is_known:
        return None
    context = capacity.num_context_tokens + num_tokens
    seconds = capacity.step_times.decode_s(capacity.num_running + 1, context)
    return seconds * max(capacity.slowness, 1.0)


def _spread(capacity: Capacity | None) -> float:
    """The relative error of the replica's step-time fit."""
    if capacity is None or capacity.step_times is None:
        return 0.0
    return capacity.step_times.spread
