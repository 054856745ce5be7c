"""The best token of each row of hidden states without computing all logits. It is exactly the token
that all logits would give, ties included, for about half of the memory traffic and arithmetic.

A greedy draw needs the largest of the logits W x, and reads all of W for it: in a small model with
a large vocabulary, a quarter of all weights. So W is also kept in eight bits, and screened first:

    x [S, K] --eight bits--> |logit - about| <= bound, for each token        reads half of W
                                     |
             the 32 tokens around the largest lower bound, and all whose
             upper bound is above the best logit so far --> best token       reads a few panels of W

With W = s q + E and x = t p + f, where q and p are integers of eight bits,

    W x - (s q)(t p) = E x + (s q) f        |.| <= |E| |x| + |s q| |f|       (Cauchy-Schwarz)

so the lengths of each row of E and of s q, computed once, bound every error. With few rows x has
16 bits, as a sum of two rows of eight, so that f is small even if some numbers of x are far larger
than the rest: reading W takes longer than both products.

`slack` is added for what float32 rounds: of the product itself at most K 2^-24 |W| |x|, in any
order of its sums (Higham, Accuracy and Stability of Numerical Algorithms, 3.1), of the bounds less.

Rows of which too many tokens are left, or which are not finite, get all of their logits. Where that
is so for many rows again and again, screening is tried less often.

S rows, V vocabulary, K model width, P panels of 32 tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton.kernels.cpu.operators import SUFFIXES, Pass
from baton.kernels.cpu.tape import NUM_OUTPUTS, Recorder
from baton.kernels.products import int8_weight
from baton.kernels.products import vocabulary_screen_cpu as cpu
from baton.kernels.products.packed_quantized_weight import PANEL, num_panels
from baton.kernels.products.packed_weight import PackedWeight
from baton.kernels.products.weight import Weight
from baton.kernels.sampling.best_token import best_finite_token

NOT_SCREENED = -1
MAX_ROWS = 64
"""Rows that are screened at once; decode passes seldom have more."""
MAX_SHARE = 0.25
"""Most of its logits that are computed of a row: with more, screening spares too little."""
MIN_BYTES = 1 << 20
"""Smaller heads take about as long as the screen's own steps."""
MAX_UNSCREENED = 0.25
"""Share of rows; with more left over, a call counts as failed."""
MAX_SKIPPED = 256
"""Most calls that are skipped after some that failed."""


class BestTokens(NamedTuple):
    """The best token of each row, in order, on the host."""

    tokens: list[int]
    are_finite: list[bool]
    """Whether all logits of the row are finite; where not, the token is meaningless."""

    def of_rows(self, rows: Sequence[int]) -> BestTokens:
        return BestTokens([self.tokens[i] for i in rows], [self.are_finite[i] for i in rows])


def screen_of(weight: Weight) -> VocabularyScreen | None:
    """A screen for the output head W [V, K]; None if it is not packed for a CPU, too small or not
    all finite."""
    if not isinstance(weight, PackedWeight) or weight.nbytes < MIN_BYTES:
        return None
    screen = VocabularyScreen(weight)
    return screen if screen.is_finite else None


def num_bytes(shape: tuple[int, ...], dtype: torch.dtype) -> int:
    """The bytes that the screen of a head [V, K] of this dtype takes; 0 if it has none."""
    num_tokens, width = shape
    if dtype not in SUFFIXES or num_tokens * width * dtype.itemsize < MIN_BYTES:
        return 0
    num_bounded = num_panels(num_tokens, is_gated=False) * PANEL
    return int8_weight.num_bytes(num_tokens, width) + 2 * 4 * num_bounded


class VocabularyScreen:
    """The head quantized to 8 bits, in addition to the head itself. Belongs to one thread."""

    def __init__(self, weight: PackedWeight) -> None:
        self._weight = weight
        self._head = cpu.bounded(weight, max(1, int(MAX_SHARE * len(weight.packed))))
        given = torch.zeros(NUM_OUTPUTS, weight.shape[1], dtype=weight.dtype)
        with Recorder() as recorder:
            best = cpu.best_tokens(given, self._head)
        self._tape = recorder.tape(best, max_tokens=0, max_outputs=MAX_ROWS, given=given)
        address = self._tape.result.data_ptr()
        self._best = (ctypes.c_int64 * MAX_ROWS).from_address(address)  # read without torch
        self._num_to_skip = self._num_skipped = 0

    @property
    def is_finite(self) -> bool:
        return self._head.longest < torch.inf

    def best_tokens(self, x: Tensor) -> BestTokens | None:
        """The first token of the largest logit in each row of `weight.logits(x)`, for x [S, K].
        None if the caller must compute all logits: for many rows, for rows that are not contiguous,
        and for some calls after rows that could not be screened."""
        if not self._takes(x) or self._skips():
            return None
        self._tape.give(x)
        self._tape.play(Pass(num_outputs=len(x)))
        best = self._best[: len(x)]
        if min(best) != NOT_SCREENED:
            self._num_to_skip = 0
            return BestTokens(best, [True] * len(best))
        left = [row for row, token in enumerate(best) if token == NOT_SCREENED]
        if len(left) > MAX_UNSCREENED * len(x):
            self._num_to_skip = min(MAX_SKIPPED, 2 * self._num_to_skip + 1)
        are_finite = [True] * len(x)
        found = best_finite_token(self._weight.logits(x[left]))
        for row, token, is_finite in zip(left, *(each.tolist() for each in found), strict=True):
            best[row], are_finite[row] = token, is_finite
        return BestTokens(best, are_finite)

    def _takes(self, x: Tensor) -> bool:
        return 0 < len(x) <= MAX_ROWS and x.dtype is self._weight.dtype and x.is_contiguous()

    def _skips(self) -> bool:
        """Whether this call is skipped."""
        skips = self._num_skipped < self._num_to_skip
        self._num_skipped = self._num_skipped + 1 if skips else 0
        return skips
