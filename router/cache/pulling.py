"""Whether to fetch a cached prefix from another replica rather than compute it: pure arithmetic.

    fetch     latency + tokens * bytes a token / bytes a second, of the two replicas' link
    compute   tokens / tokens a second

All of these are measured, from receipts, and configured until then. A pair between which nothing
was pulled lately counts as the average of all pairs (`link_times.py`). The gain must be worth
moving blocks, so a fetch has to be clearly cheaper, and of some length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from math import inf

from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.core.messages import Receipt
from baton.core.replicas import ReplicaInfo
from baton.router.speeds.coefficients import SpeedCoefficients
from baton.router.speeds.link_times import LinkTime, LinkTimes, Pair

CLEARLY = 1.25
"""How many times what fetching takes, computing must take."""
PATIENCE = 0.2
"""Weight of the last receipt in a measured rate."""
MIN_MEASURED_TOKENS = 32
MIN_MEASURED_BYTES = 1 << 16
"""Less says more about latency than about a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRates:
    """Measured costs of fetching and of computing KV."""

    is_enabled: bool = True
    min_tokens: int = 64
    """Shorter stretches are computed."""
    latency_s: float = 0.01
    """The time that one transfer takes, however short."""
    bytes_per_s: float = 200e6
    tokens_per_s: float = 2000.0
    """Tokens that a replica prefills."""
    links: LinkTimes = field(default_factory=LinkTimes, compare=False)
    """Latency and bandwidth of fetches between pairs of replicas, as far as they are known.
    Live."""
    handoff_s: float = 0.01
    """Seconds from a prompt's first token until its KV is where it is decoded, of whichever
    pair."""
    handoffs: LinkTimes = field(default_factory=LinkTimes, compare=False)
    """Latency and bandwidth of handoffs between pairs (prefill, decode), as far as they are known.
    Live."""

    @property
    def usual(self) -> LinkTime:
        """The link time of a pair of which nothing is known."""
        return LinkTime(self.latency_s, self.bytes_per_s)

    def fetch_s(self, num_tokens: int, layout: KvLayout, pair: Pair) -> float:
        """Seconds until `num_tokens` tokens of this layout have gone from one to the other."""
        num_bytes = num_tokens * layout.block_bytes / layout.block_size
        link = self.links.of(pair)
        if link is None:
            return self.latency_s + num_bytes / self.bytes_per_s
        return link.seconds(num_bytes)

    def saved_s(self, num_tokens: int, layout: KvLayout, pair: Pair) -> float:
        """Seconds saved by fetching so many tokens rather than computing them; 0 unless it is worth
        it."""
        if not self.is_enabled or num_tokens < self.min_tokens:
            return 0.0
        compute_s = num_tokens / self.tokens_per_s
        fetch_s = self.fetch_s(num_tokens, layout, pair)
        return compute_s - fetch_s if compute_s >= CLEARLY * fetch_s else 0.0


@dataclass(frozen=True, slots=True)
class Holding:
    """A replica and the leading tokens of a prompt that it has."""

    info: ReplicaInfo
    num_tokens: int


def best_source(
    holdings: Iterable[Holding], *, num_held: int, taker: Epoch, rates: PullRates
) -> Holding | None:
    """The replica that `taker`, which has `num_held` tokens, should ask for more; None: it computes
    them.

    The source that saves most: the one with most of the prefix, unless the way from there is long.
    """
    best, most_s = None, 0.0
    for holding in holdings:
        info, num_more = holding.info, holding.num_tokens - num_held
        if info.epoch == taker or num_more < rates.min_tokens:
            continue
        saved_s = rates.saved_s(num_more, info.layout, (info.epoch, taker))
        if saved_s > most_s:
            best, most_s = holding, saved_s
    return best


class RateMeter:
    """Follows the receipts of the requests that end here."""

    def __init__(self, configured: PullRates) -> None:
        self.rates = replace(configured, links=LinkTimes(), handoffs=LinkTimes())
        self._handoff_s: float | None = None
        self._bytes_per_s: float | None = None
        self._tokens_per_s: float | None = None

    is_measured = False
    """Whether the rate is of one replica alone: never, it is the pool's."""

    @property
    def pace(self) -> SpeedCoefficients:
        return SpeedCoefficients(tokens_per_s=self.rates.tokens_per_s)

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """Seconds of any replica, until it reports its own speed (`candidate.Speed`)."""
        return max(num_tokens - num_cached, 1) / self.rates.tokens_per_s

    def observe(
        self, receipt: Receipt, pair: Pair | None, now: float, handed_off: Pair | None = None
    ) -> None:
        """Learn from the receipt of one attempt: D's own. `pair`: what it was to pull between;
        `handed_off`: who computed the prompt, who decodes it.

        A handoff's time begins when the prompt is scheduled, behind its queue, and contains the
        computing it waits for, so only what was pulled shows how fast KV travels; what is left of
        a handoff's is what the request waited for its KV.
        """
        self.rates.links.pass_to(now)
        self.rates.handoffs.pass_to(now)
        if handed_off is not None and receipt.transfer_ms > 0 and receipt.kv_bytes > 0:
            left_ms = receipt.transfer_ms - receipt.prefill_ms
            self._observe_handoff(handed_off, receipt.kv_bytes, max(left_ms, 0.0) / 1e3)
        num_computed = receipt.prompt_tokens - receipt.cached_tokens
        if receipt.prefill_ms > 0 and num_computed >= MIN_MEASURED_TOKENS:
            rate = num_computed / (receipt.prefill_ms / 1e3)
            self._tokens_per_s = _smoothed(self._tokens_per_s, rate)
        is_pulled = receipt.pulled_tokens > 0 and not receipt.prefill_replica
        if is_pulled and receipt.transfer_ms > 0 and receipt.kv_bytes >= MIN_MEASURED_BYTES:
            seconds = receipt.transfer_ms / 1e3
            if pair is not None:
                self.rates.links.observe(pair, receipt.kv_bytes, seconds, self.rates.usual)
            self._bytes_per_s = _smoothed(self._bytes_per_s, receipt.kv_bytes / seconds)
        self.rates = replace(
            self.rates,
            bytes_per_s=self._bytes_per_s or self.rates.bytes_per_s,
            tokens_per_s=self._tokens_per_s or self.rates.tokens_per_s,
            handoff_s=self.rates.handoff_s if self._handoff_s is None else self._handoff_s,
        )

    def _observe_handoff(self, pair: Pair, num_bytes: int, seconds: float) -> None:
        """Most of it goes while the prompt is computed, whatever its size."""
        self._handoff_s = _smoothed(self._handoff_s, seconds)
        self.rates.handoffs.observe(pair, num_bytes, seconds, LinkTime(self._handoff_s, inf))


def _smoothed(before: float | None, rate: float) -> float:
    return rate if before is None else before + PATIENCE * (rate - before)
