"""How many replicas a load needs to meet the SLO.

    prefill    one queue, a server a replica: wait + the prompt's passes  <=  TTFT
    decode     as many concurrent requests as keep the step below ITL and fit into the KV cache
    mixed      decode replicas that compute prompts (`mixed.py`)

The SLO holds for a share of requests (90 %, say), so the queue's wait is taken at that quantile,
and so is the Poisson-distributed number of decoding requests.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import ceil, inf, sqrt
from statistics import NormalDist
from typing import Protocol

from baton.core.step_times import StepTimes, StepWork
from baton.platform.planner.queueing import Service, wait_s

MAX_REPLICAS = 4096
MAX_ROUNDS = 200
EXACT = 0.005
MIN_BATCH = 0.2
"""Mean requests on a replica below which two rarely coincide, so that more replicas would not
help."""
BUSIEST = 0.95
"""The most utilisation for which a replica is planned, however loose the SLO."""


class PassTimes(Protocol):
    """Times of a replica's passes."""

    def prompt_s(self, num_tokens: int, num_before: int) -> float:
        """Seconds of a pass with `num_tokens` of one prompt after `num_before` earlier tokens."""

    def step_s(
        self, num_requests: int, context: float, piece: int = 0, num_before: float = 0.0
    ) -> float:
        """Seconds of a step with one token of each request, and a `piece` of a prompt after
        `num_before` tokens."""


@dataclass(frozen=True, slots=True)
class FittedPasses:
    """Pass times by the coefficients of a replica's own fit."""

    times: StepTimes

    def prompt_s(self, num_tokens: int, num_before: int) -> float:
        num_pairs = num_tokens * num_before + num_tokens * (num_tokens - 1) // 2
        return self.times.predict_s(StepWork(num_tokens, num_pairs, 0, 1))

    def step_s(
        self, num_requests: int, context: float, piece: int = 0, num_before: float = 0.0
    ) -> float:
        num_pairs = round(piece * num_before) + piece * (piece - 1) // 2
        work = StepWork(
            num_requests + piece,
            num_pairs,
            round(num_requests * context),
            num_requests + bool(piece),
        )
        return self.times.predict_s(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """The load. Tokens are means."""

    rate: float
    """Requests a second."""
    prompt_tokens: float
    """Mean prompt tokens that are computed; cached ones are left out."""
    output_tokens: float
    prompt_cv2: float = 0.0
    """Variance of the prompts' lengths over the square of their mean."""
    cached_tokens: float = 0.0
    """Mean prompt tokens found in a prefix cache, ahead of those that are computed."""
    num_open: float = 0.0
    """A lower bound of concurrent requests, while too few have ended to know the length of
    answers."""

    @property
    def context(self) -> float:
        """Tokens in the KV cache of a decoding request, averaged over its life."""
        return self.whole_prompt_tokens + self.output_tokens / 2

    @property
    def held_tokens(self) -> float:
        """KV tokens of a request at its end."""
        return self.whole_prompt_tokens + self.output_tokens

    @property
    def whole_prompt_tokens(self) -> float:
        return self.cached_tokens + self.prompt_tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Promise:
    """The SLO, to be met by `share` of all requests."""

    ttft_s: float
    itl_s: float
    share: float = 0.9

    @property
    def deviations(self) -> float:
        """Standard deviations above the mean below which `share` of a normal distribution lies."""
        return NormalDist().inv_cdf(self.share)

    def peak(self, mean: float) -> float:
        """The `share` quantile of a Poisson number with this mean."""
        return mean + self.deviations * sqrt(mean) if mean < inf else inf


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaModel:
    """One replica of a role."""

    passes: PassTimes
    max_chunk: int
    """Tokens of a prompt in one pass."""
    num_kv_tokens: int
    max_requests: int
    """Requests that decode at once."""
    overhead_s: float = 0.0
    """Seconds of TTFT outside of the passes: gateway, messages, KV transfer."""

    def prefill_s(self, num_tokens: float, num_cached: float = 0.0) -> float:
        """Seconds of the passes for `num_tokens` of a prompt behind its cached ones, alone on the
        replica."""
        whole, rest = divmod(max(round(num_tokens), 1), self.max_chunk)
        ends = [round(num_cached) + piece * self.max_chunk for piece in range(whole + 1)]
        total = sum(self.passes.prompt_s(self.max_chunk, before) for before in ends[:-1])
        return total + (self.passes.prompt_s(rest, ends[-1]) if rest else 0.0)

    def mean_prefill_s(self, load: Load) -> float:
        return self.prefill_s(load.prompt_tokens, load.cached_tokens)

    def step_s(
        self, batch: float, context: float, piece: int = 0, num_before: float = 0.0
    ) -> float:
        """Seconds of a step at a mean batch size, interpolated between the two whole ones."""
        low = max(int(batch), 1)
        at_low = self.passes.step_s(low, context, piece, num_before)
        if batch <= low:
            return at_low
        return at_low + (batch - low) * (
            self.passes.step_s(low + 1, context, piece, num_before) - at_low
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """The replicas of a role, with their forecast."""

    num_replicas: int
    busy: float
    """Share of their time that they compute; of decoding, of the requests that they may have."""
    seconds: float
    """The forecast quantile in seconds: TTFT, or ITL."""
    batch: float = 0.0
    """Requests that decode on one of them, on average."""
    is_kept: bool = True
    """Whether the SLO is met; else as many replicas as sustain the load."""
    typical_s: float = 0.0
    """Seconds that the median request waits."""

    @property
    def typical_batch(self) -> int:
        """Requests in a typical decode step, at least 1; also 1 for overloaded replicas."""
        return max(round(self.batch), 1) if self.batch < inf else 1


def prefill_need(load: Load, model: ReplicaModel, promise: Promise) -> Need:
    """The fewest replicas that meet TTFT; if no number does, the fewest that sustain the load."""
    asked = load.rate * model.mean_prefill_s(load)
    num_replicas = max(ceil(asked / BUSIEST), 1)
    found = prefill_with(load, model, promise, num_replicas)
    could_keep = _alone_s(load, model, promise) <= promise.ttft_s
    while could_keep and not found.is_kept:
        num_replicas += 1
        found = prefill_with(load, model, promise, num_replicas)
    return found


def _alone_s(load: Load, model: ReplicaModel, promise: Promise) -> float:
    """TTFT without a queue of a prompt at the share's length quantile."""
    longest = load.prompt_tokens * (1 + promise.deviations * sqrt(load.prompt_cv2))
    return model.overhead_s + model.prefill_s(longest, load.cached_tokens)


def prefill_with(load: Load, model: ReplicaModel, promise: Promise, num_replicas: int) -> Need:
    """The prediction for this number of replicas."""
    service = Service(model.mean_prefill_s(load), load.prompt_cv2)
    waited_s = wait_s(load.rate, service, num_replicas, promise.share)
    seconds = _alone_s(load, model, promise) + waited_s
    waits_s = wait_s(load.rate, service, num_replicas, 0.5)
    return Need(
        num_replicas=num_replicas,
        busy=load.rate * service.mean_s / num_replicas,
        seconds=seconds,
        typical_s=model.overhead_s + service.mean_s + waits_s,
        is_kept=seconds <= promise.ttft_s,
    )


def decode_need(load: Load, model: ReplicaModel, promise: Promise) -> Need:
    """The fewest replicas that meet ITL, and have places for all decoding requests."""
    limit = max_batch(load, model, promise)
    if not limit:  # not even one request meets it: as many as hold all
        limit = most_held(load, model)
    num_replicas = 1
    batch = batch_of(load, model, num_replicas)
    while promise.peak(batch) > max(limit, 1) and num_replicas < MAX_REPLICAS:
        num_replicas += 1
        batch = batch_of(load, model, num_replicas)
        if batch < MIN_BATCH:
            break  # alone on its replica nearly always
    return decode_with(load, model, promise, num_replicas)


def decode_with(load: Load, model: ReplicaModel, promise: Promise, num_replicas: int) -> Need:
    """The prediction for this number of replicas."""
    limit = max_batch(load, model, promise)
    batch = batch_of(load, model, num_replicas)
    if batch == inf:
        return Need(
            num_replicas=num_replicas,
            busy=inf,
            seconds=inf,
            typical_s=inf,
            batch=inf,
            is_kept=False,
        )
    peak = max(promise.peak(batch), 1.0)
    return Need(
        num_replicas=num_replicas,
        busy=batch / max(most_held(load, model), 1),
        seconds=model.passes.step_s(ceil(peak), load.context),
        typical_s=model.passes.step_s(max(round(batch), 1), load.context),
        batch=batch,
        is_kept=bool(limit) and (peak <= limit or batch < MIN_BATCH),
    )


def max_batch(load: Load, model: ReplicaModel, promise: Promise) -> int:
    """Requests that may decode at once on a replica within ITL; 0 if not even one."""
    low, high = 0, most_held(load, model)
    while low < high:  # steps only grow with requests
        middle = (low + high + 1) // 2
        is_kept = model.passes.step_s(middle, load.context) <= promise.itl_s
        low, high = (middle, high) if is_kept else (low, middle - 1)
    return low


def most_held(load: Load, model: ReplicaModel) -> int:
    """Requests that fit on a replica, by KV and places."""
    return int(min(model.num_kv_tokens / max(load.held_tokens, 1.0), model.max_requests))


def batch_of(load: Load, model: ReplicaModel, num_replicas: int) -> float:
    """Mean requests that decode on each of `num_replicas` (Little's law). Infinite if they arrive
    faster."""
    rate = load.rate / num_replicas * load.output_tokens  # tokens a second
    found = settled(
        lambda batch: rate * model.step_s(batch, load.context),
        2 * max(most_held(load, model), 1),
    )
    return max(found, load.num_open / num_replicas)


def settled(following: Callable[[float], float], most: float) -> float:
    """The fixed point of `following`; infinite above `most`. Aitken's acceleration, since plain
    iteration converges slowly near saturation.
    """
    batch = 0.0
    for _ in range(MAX_ROUNDS):
        first = following(batch)
        second = following(first) if first <= most else inf
        if second > most:
            return inf
        slope = (second - first) / (first - batch) if first != batch else 0.0
        found = second + slope / (1 - slope) * (second - first) if 0 < slope < 1 else second
        if abs(found - batch) <= EXACT * found:
            return found
        batch = min(found, most)
    return batch
