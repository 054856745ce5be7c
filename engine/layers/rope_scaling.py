"""Scalings of the rotary frequencies f[i] = theta^(-2i / R), for contexts longer than trained.

    linear    all f divided by a factor                                      Chen et al. 2023
    dynamic   a larger theta, the larger the longer the context served       NTK-aware, bloc97 2023
    yarn      slow f divided, fast f kept, a ramp between; scores sharpened  Peng et al. 2023
    llama3    the same with other bounds, without sharpening                 Llama 3.1
    longrope  each f divided by its own searched factor; scores sharpened    Ding et al. 2024

A pair that turns few times over the original context is slow: it was never seen to turn fully.

Dynamic and longrope depend on the length that is served. That of a single request would not do:
the KV of a token would depend on the tokens that follow it, and no prefix could be shared, cut into
chunks or handed over. So frequencies are chosen once, for `served_len`, the longest request that
the replica takes: up to the original context those of short contexts, beyond it those of long.
Transformers chooses by each request's length and agrees wherever it is on the same side.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


def plain_frequencies(rotary_dim: int, theta: float) -> Tensor:
    """[R/2] float32 radians a position."""
    exponents = torch.arange(0, rotary_dim, 2).float() / rotary_dim
    frequencies: Tensor = 1.0 / theta**exponents
    return frequencies


class Scaling(Protocol):
    @property
    def attention_factor(self) -> float:
        """The factor of cos and sin; its square scales the scores."""

    def frequencies(self, rotary_dim: int, theta: float, served_len: int) -> Tensor:
        """[R/2] float32 radians a position."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LinearScaling:
    factor: float

    @property
    def attention_factor(self) -> float:
        return 1.0

    def frequencies(self, rotary_dim: int, theta: float, served_len: int) -> Tensor:
        return plain_frequencies(rotary_dim, theta) / self.factor


@dataclass(frozen=True, slots=True, kw_only=True)
class DynamicScaling:
    factor: float
    """The largest ratio of served to original context."""
    original_len: int

    @property
    def attention_factor(self) -> float:
        return 1.0

    def frequencies(self, rotary_dim: int, theta: float, served_len: int) -> Tensor:
        if served_len > self.original_len:
            growth = self.factor * served_len / self.original_len - (self.factor - 1)
            theta *= growth ** (rotary_dim / (rotary_dim - 2))
        return plain_frequencies(rotary_dim, theta)


@dataclass(frozen=True, slots=True, kw_only=True)
class YarnScaling:
    factor: float
    original_len: int
    fast_turns: float
    """Pairs with more turns over the original context are kept."""
    slow_turns: float
    """Pairs with fewer are divided by `factor`."""
    is_truncated: bool
    """The ramp begins and ends at whole pairs."""
    attention_factor: float

    def frequencies(self, rotary_dim: int, theta: float, served_len: int) -> Tensor:
        def pair_with(turns: float) -> float:
            ratio = self.original_len / (turns * 2 * math.pi)
            return rotary_dim * math.log(ratio) / (2 * math.log(theta))

        low, high = pair_with(self.fast_turns), pair_with(self.slow_turns)
        if self.is_truncated:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, rotary_dim - 1)
        span = high - low or 0.001
        divided = ((torch.arange(rotary_dim // 2).float() - low) / span).clamp(0, 1)
        plain = plain_frequencies(rotary_dim, theta)
        return plain / self.factor * divided + plain * (1 - divided)


TINY_SPAN = 1e-9
"""The least span of turns between slow and fast pairs, to avoid a division by 0."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Llama3Scaling:
    factor: float
    low_freq_factor: float
    """A pair with fewer turns over the original context is slow."""
    high_freq_factor: float
    """Pairs with more turns are fast; those between are scaled in part. If equal to
    `low_freq_factor` (Llama 4), there are none between."""
    original_len: int

    @property
    def attention_factor(self) -> float:
        return 1.0

    def frequencies(self, rotary_dim: int, theta: float, served_len: int) -> Tensor:
        plain = plain_frequencies(rotary_dim, theta)
        turns = self.original_len * plain / (2 * math.pi)
        span = max(self.high_freq_factor - self.low_freq_factor, TINY_SPAN)
        kept = ((turns - self.low_freq_factor) / span).clamp(0, 1)
        return (1 - kept) * plain / self.factor + kept * plain


@dataclass(frozen=True, slots=True, kw_only=True)
class LongRopeScaling:
    short_factors: tuple[float, ...]  # [R/2]
    long_factors: tuple[float, ...]  # [R/2]
    original_len: int
    attention_factor: float

    def frequencies(self, rotary_dim: int, theta: float, served_len: int) -> Tensor:
        is_long = served_len > self.original_len
        factors = torch.tensor(self.long_factors if is_long else self.short_factors)
        return plain_frequencies(rotary_dim, theta) / factors
