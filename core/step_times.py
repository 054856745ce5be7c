"""How long a replica's steps take, as a function of what they compute: a replica's own fit.

    seconds of a step = constant + tokens x token + pairs x pair
                        + context x context + requests x request

    tokens     run through the model, of prompts and outputs alike
    pairs      (token, earlier token) attended in prompts: s n + n (n - 1) / 2 for n tokens behind s
    context    earlier tokens that decoding requests read, one row each: the sum of their lengths
    requests   that have a part in the step

All coefficients are seconds, and none is negative. A step's time is its period while there is work:
from the end of the step before to its own, with whatever the engine's thread did in between.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple


class StepWork(NamedTuple):
    """The work of one step, or of several together."""

    num_tokens: int = 0
    num_pairs: int = 0
    num_context: int = 0
    num_requests: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTimes:
    """The coefficients, and how far they are to be believed."""

    constant_s: float = 0.0
    """Seconds of every step, whatever is in it: the weights are read, kernels are launched."""
    token_s: float = 0.0
    pair_s: float = 0.0
    context_s: float = 0.0
    request_s: float = 0.0
    spread: float = 0.0
    """Median of |measured / predicted - 1| over recent steps."""
    num_prompt_steps: int = 0
    """Steps that were measured and had a prompt in them; without any, `pair_s` is a guess, and
    `token_s` says little of long passes."""
    num_decode_steps: int = 0
    """Steps that only decoded; without any, `context_s` and `request_s` are guesses."""
    age_s: float = 0.0
    """Seconds since the last step that was measured."""

    @property
    def is_known(self) -> bool:
        """Whether any step was measured: there is nothing to predict from before."""
        return self.num_prompt_steps + self.num_decode_steps > 0

    @property
    def is_sound(self) -> bool:
        """Whether these can be times at all: one number that is none would spoil all it meets."""
        seconds = self.constant_s, self.token_s, self.pair_s, self.context_s, self.request_s
        return all(math.isfinite(one) and one >= 0 for one in (*seconds, self.spread))

    def predict_s(self, work: StepWork, *, num_steps: int = 1) -> float:
        """The time of `num_steps` steps that do `work` between them."""
        return self._sum_s(num_steps, *work)

    def _sum_s(
        self, num_steps: int, num_tokens: int, num_pairs: int, num_context: int, num_requests: int
    ) -> float:
        return (
            num_steps * self.constant_s
            + num_tokens * self.token_s
            + num_pairs * self.pair_s
            + num_context * self.context_s
            + num_requests * self.request_s
        )

    def prefill_s(self, num_tokens: int, num_cached: int, chunk: int) -> float:
        """The time to compute a prompt, of which the first `num_cached` tokens need not be, alone
        and in passes of `chunk` tokens.

        How it is cut into passes does not change its pairs: the sum has a closed form.
        """
        num_new = num_tokens - num_cached
        num_steps = -(-num_new // chunk)
        return self._sum_s(num_steps, num_new, _prompt_pairs(num_new, num_cached), 0, num_steps)

    def decode_s(self, num_requests: int, num_context: int) -> float:
        """The time of a step in which so many requests decode, `num_context` tokens together: the
        time between two tokens of each."""
        return self.predict_s(StepWork(num_requests, 0, num_context, num_requests))


def prompt_work(num_tokens: int, num_before: int) -> StepWork:
    """The work of one pass over `num_tokens` tokens of a prompt behind `num_before` of its own."""
    return StepWork(num_tokens, _prompt_pairs(num_tokens, num_before), 0, 1)


def _prompt_pairs(num_tokens: int, num_before: int) -> int:
    return num_tokens * num_before + num_tokens * (num_tokens - 1) // 2
