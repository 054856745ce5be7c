"""The token of each row of hidden states without computing all logits. It is exactly the token that
all logits would give, ties included, for about half of the memory traffic and arithmetic.

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

A draw with noise needs the largest sum of logit / temperature and noise. Noise is a function of the
token, so it is known for tokens whose logits are not, and these are ruled out in the same way, once
the best logit is known.

Top-k keeps the tokens that are not below the k-th largest logit, and top-p is a share of their mass
(kernels/sampling/token_filter.py). Panels are computed from the largest upper bound on, so that the
tokens above the next bound are all known. The k-th largest logit so far rules out what is below it.
Mostly the draw ends earlier, as soon as

    the best sum of score and noise so far is that of a token above the next bound,
    the tokens above that token have less than the share p of the mass known so far, and
    no token that may be kept can have a larger sum.

Without top-k, the mass known so far is less than that of all tokens, so a draw may end in the same
way; where it does not soon, the row gets all of its logits.

Rows of which too many tokens are left, or which are not finite, get all of their logits. A call
that computes more than it spares has failed, and after calls that failed screening is tried less
often.

S rows, V vocabulary, K model width, P panels of 32 tokens.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from baton.kernels.cpu.operators import SUFFIXES, Pass
from baton.kernels.cpu.tape import NUM_OUTPUTS, Recorder, Tape
from baton.kernels.products import int8_weight
from baton.kernels.products import vocabulary_screen_cpu as cpu
from baton.kernels.products.packed_quantized_weight import PANEL, num_panels
from baton.kernels.products.packed_weight import PackedWeight
from baton.kernels.products.weight import Weight
from baton.kernels.sampling.best_token import best_finite_token
from baton.kernels.sampling.draw_token import Draws, draw_token

NOT_SCREENED = -1
MAX_ROWS = 64
"""Rows that are screened at once; decode passes seldom have more."""
MAX_SHARE = 0.25
"""Most of its logits that are computed of a row: with more, screening spares too little."""
MIN_BYTES = 1 << 20
"""Smaller heads take about as long as the screen's own steps."""
READ_ROWS = 16
"""Rows whose product takes about as long as reading W once; more take longer in proportion."""
MAX_SPENT = 0.5
"""Most of the time of all logits that a call may spend on exact logits; with more it has failed, as
what is left is what the bounds take."""
MAX_SKIPPED = 256
"""Most calls that are skipped after some that failed."""


class ScreenedTokens(NamedTuple):
    """The token of each row, in order, on the host."""

    tokens: list[int]
    are_finite: list[bool]
    """Whether all logits of the row are finite; where not, the token is meaningless."""

    def of_rows(self, rows: Sequence[int]) -> ScreenedTokens:
        return ScreenedTokens([self.tokens[i] for i in rows], [self.are_finite[i] for i in rows])


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
    num_bounded = num_panels(num_tokens, is_gated=False) * PANEL
    if dtype not in SUFFIXES or num_bounded * width * dtype.itemsize < MIN_BYTES:
        return 0
    return int8_weight.num_bytes(num_tokens, width) + 2 * 4 * num_bounded


class VocabularyScreen:
    """The head quantized to 8 bits, in addition to the head itself. Belongs to one thread."""

    def __init__(self, weight: PackedWeight) -> None:
        self._weight = weight
        self._head = cpu.bounded(weight, max(1, int(MAX_SHARE * len(weight.packed))))
        self._settings = cpu.Settings(
            temperature=torch.zeros(MAX_ROWS),
            top_k=torch.zeros(MAX_ROWS, dtype=torch.int64),
            top_p=torch.ones(MAX_ROWS),
            least=torch.zeros(MAX_ROWS),
            streams=torch.zeros(MAX_ROWS, 4, dtype=torch.int64),
        )
        self._best, self._drawn = self._recorded(None), self._recorded(self._settings)
        self._num_to_skip = self._num_skipped = 0

    def _recorded(self, settings: cpu.Settings | None) -> _Tape:
        given = torch.zeros(NUM_OUTPUTS, self._weight.shape[1], dtype=self._weight.dtype)
        with Recorder() as recorder:
            tokens, nums_computed = cpu.found_tokens(given, self._head, settings)
        return _Tape(
            recorder.tape(
                tokens, max_tokens=0, max_outputs=MAX_ROWS, given=given, further=[nums_computed]
            )
        )

    @property
    def is_finite(self) -> bool:
        return self._head.longest < torch.inf

    def tokens(self, x: Tensor, draws: Draws | None = None) -> ScreenedTokens | None:
        """The token of each row of x [S, K]: the first of the largest logit in `weight.logits(x)`,
        or for the rows of `draws` what `draw_token` draws from all logits. None if the caller has
        to compute all logits: of many rows, of rows that lie apart, and for some calls after rows
        that could not be screened."""
        if not self._takes(x) or self._skips():
            return None
        if draws is None:
            found, num_computed = self._best.tokens(x)
        else:
            self._set(len(x), draws)
            found, num_computed = self._drawn.tokens(x)
        left = [row for row, token in enumerate(found) if token == NOT_SCREENED]
        if self._has_spared(len(x), num_computed, len(left)):
            self._num_to_skip = 0
        else:
            self._num_to_skip = min(MAX_SKIPPED, 2 * self._num_to_skip + 1)
        are_finite = [True] * len(x)
        if left:
            of_logits = self._tokens_of_logits(x, left, draws)
            for row, token, is_finite in zip(left, *of_logits, strict=True):
                found[row], are_finite[row] = token, is_finite
        return ScreenedTokens(found, are_finite)

    def _set(self, num_rows: int, draws: Draws) -> None:
        settings, rows, filters = self._settings, draws.rows, draws.filters
        settings.temperature[:num_rows] = 0
        settings.temperature[rows] = draws.temperature
        settings.top_k[rows] = filters.top_k
        settings.top_p[rows] = filters.top_p
        settings.least[rows] = filters.min_p.log()
        settings.streams[rows] = draws.streams

    def _tokens_of_logits(
        self, x: Tensor, rows: Sequence[int], draws: Draws | None
    ) -> tuple[list[int], list[bool]]:
        """The tokens of some rows from all of their logits, and whether these are finite."""
        logits = self._weight.logits(x[rows])
        tokens, are_finite = best_finite_token(logits)
        if draws is not None:
            drawn = draws.of_rows(rows)
            if len(drawn.rows):
                tokens[drawn.rows] = draw_token(logits, tokens, drawn)
        return tokens.tolist(), are_finite.tolist()

    def _has_spared(self, num_rows: int, num_computed: int, num_left: int) -> bool:
        """Whether a call spared time: each panel that it computed for a row is read for that row
        alone, and all of them once more if rows are left."""
        num_panels = len(self._weight.packed)
        num_read = num_computed + (num_panels * max(1, num_left / READ_ROWS) if num_left else 0)
        return num_read <= MAX_SPENT * num_panels * max(1, num_rows / READ_ROWS)

    def _takes(self, x: Tensor) -> bool:
        return 0 < len(x) <= MAX_ROWS and x.dtype is self._weight.dtype and x.is_contiguous()

    def _skips(self) -> bool:
        """Whether this call is one of those that are skipped."""
        skips = self._num_skipped < self._num_to_skip
        self._num_skipped = self._num_skipped + 1 if skips else 0
        return skips


class _Tape:
    """The operators of a screen, recorded for up to `MAX_ROWS` rows."""

    def __init__(self, tape: Tape) -> None:
        self._tape = tape
        self._tokens, self._nums_computed = map(_numbers_in, (tape.result, *tape.further))

    def tokens(self, x: Tensor) -> tuple[list[int], int]:
        """The token of each row of x, and how many panels were computed for all of them."""
        self._tape.give(x)
        self._tape.play(Pass(num_outputs=len(x)))
        return self._tokens[: len(x)], sum(self._nums_computed[: len(x)])


def _numbers_in(memory: Tensor) -> ctypes.Array[ctypes.c_int64]:
    """The int64 of each row in the memory of a tape, which must be kept: read without torch."""
    return (ctypes.c_int64 * MAX_ROWS).from_address(memory.data_ptr())
