"""Whether KV in the tiers is worth bringing back, or is computed sooner. Pure, except for the
rates.

    gain of a block = block size / (tokens computed per second) - bytes / (bytes read per second)

summed over the tiers that hold them; the prefix with the largest gain is taken, if it is long
enough. A rate that is not known yet counts as no cost: trying it is how it becomes known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baton.core.clock import Clock, monotonic
from baton.kv_transfer.tiers.stack import TierPart

FORGET_AFTER_S = 60.0
"""A rate this old says nothing: a disk that was busy need not be so for ever."""
WEIGHT = 0.3
"""The share of the latest observation in the smoothed rate."""


class Rate:
    """Something per second, as observed lately."""

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._per_s = 0.0
        self._observed_at = float("-inf")

    def observe(self, amount: float, seconds: float) -> None:
        if amount <= 0 or seconds <= 0:
            return
        latest, known = amount / seconds, self.per_s
        self._per_s = latest if known is None else known + WEIGHT * (latest - known)
        self._observed_at = self._clock()

    @property
    def per_s(self) -> float | None:
        """None: not known, or not any more."""
        is_known = self._clock() - self._observed_at <= FORGET_AFTER_S
        return self._per_s if is_known else None


def blocks_worth_taking(
    stretches: Sequence[TierPart],
    *,
    block_bytes: int,
    block_tokens: int,
    bytes_per_s: Mapping[str, float | None],
    tokens_per_s: float | None,
) -> int:
    """How many leading blocks to bring in; 0 if computing them all is no slower.

    `bytes_per_s` is by tier.
    """
    num_blocks = sum(stretch.num_blocks for stretch in stretches)
    if tokens_per_s is None:
        return num_blocks
    best, best_gain_s, taken, gain_s = 0, 0.0, 0, 0.0
    for stretch in stretches:
        rate = bytes_per_s.get(stretch.tier)
        cost_s = 0.0 if rate is None else block_bytes / rate
        gain_s += stretch.num_blocks * (block_tokens / tokens_per_s - cost_s)
        taken += stretch.num_blocks
        if gain_s > best_gain_s:
            best, best_gain_s = taken, gain_s
    return best
