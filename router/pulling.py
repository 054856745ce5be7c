"""Whether to fetch a cached prefix from another replica rather than compute it: pure arithmetic.

    fetch     latency + tokens * bytes a token / bytes a second
    compute   tokens / tokens a second

Both rates are measured, from receipts, and configured until then. What is gained must be worth a
move of blocks, so a fetch has to be clearly cheaper, and of some length.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from baton.core.ids import Epoch
from baton.core.kv_layout import KvLayout
from baton.core.messages import Receipt, ReplicaInfo
from baton.router.candidate import Pace

CLEARLY = 1.25
"""How many times what fetching takes, computing must take."""
PATIENCE = 0.2
"""Weight of the last receipt in a measured rate."""
MIN_MEASURED_TOKENS = 32
MIN_MEASURED_BYTES = 1 << 16
"""Less says more about latency than about a rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullRates:
    """What fetching and computing cost, as far as it is known."""

    is_enabled: bool = True
    min_tokens: int = 64
    """Shorter stretches are computed."""
    latency_s: float = 0.01
    """The time that one transfer takes, however short."""
    bytes_per_s: float = 200e6
    tokens_per_s: float = 2000.0
    """Tokens that a replica prefills."""

    def is_worth_it(self, num_tokens: int, layout: KvLayout) -> bool:
        """Whether to fetch `num_tokens` tokens of this layout."""
        if not self.is_enabled or num_tokens < self.min_tokens:
            return False
        num_bytes = num_tokens * layout.block_bytes / layout.block_size
        fetch_s = self.latency_s + num_bytes / self.bytes_per_s
        return num_tokens / self.tokens_per_s >= CLEARLY * fetch_s


@dataclass(frozen=True, slots=True)
class Holding:
    """A replica and the leading tokens of a prompt that it has."""

    info: ReplicaInfo
    num_tokens: int


def best_source(
    holdings: Iterable[Holding], *, num_held: int, taker: Epoch, rates: PullRates
) -> Holding | None:
    """Whom `taker`, which has `num_held` tokens, should ask for more; None: it computes them."""
    others = (holding for holding in holdings if holding.info.epoch != taker)
    best = max(others, key=lambda holding: holding.num_tokens, default=None)
    if best is None or not rates.is_worth_it(best.num_tokens - num_held, best.info.layout):
        return None
    return best


class RateMeter:
    """Follows the receipts of the requests that end here."""

    def __init__(self, configured: PullRates) -> None:
        self.rates = configured
        self._bytes_per_s: float | None = None
        self._tokens_per_s: float | None = None

    is_measured = False
    """Of one replica: it is the pool's rate."""

    @property
    def pace(self) -> Pace:
        return Pace(tokens_per_s=self.rates.tokens_per_s)

    def prefill_s(self, num_tokens: int, num_cached: int) -> float:
        """What any replica takes, until it says how fast it is (`candidate.Speed`)."""
        return max(num_tokens - num_cached, 1) / self.rates.tokens_per_s

    def hear(self, receipt: Receipt) -> None:
        """Learn from the receipt of one attempt: D's own.

        A handoff's time contains the computing it waits for, so only what was pulled tells how
        fast KV travels.
        """
        num_computed = receipt.prompt_tokens - receipt.cached_tokens
        if receipt.prefill_ms > 0 and num_computed >= MIN_MEASURED_TOKENS:
            rate = num_computed / (receipt.prefill_ms / 1e3)
            self._tokens_per_s = _smoothed(self._tokens_per_s, rate)
        is_pulled = receipt.pulled_tokens > 0 and not receipt.prefill_replica
        if is_pulled and receipt.transfer_ms > 0 and receipt.kv_bytes >= MIN_MEASURED_BYTES:
            rate = receipt.kv_bytes / (receipt.transfer_ms / 1e3)
            self._bytes_per_s = _smoothed(self._bytes_per_s, rate)
        self.rates = replace(
            self.rates,
            bytes_per_s=self._bytes_per_s or self.rates.bytes_per_s,
            tokens_per_s=self._tokens_per_s or self.rates.tokens_per_s,
        )


def _smoothed(before: float | None, rate: float) -> float:
    return rate if before is None else before + PATIENCE * (rate - before)
