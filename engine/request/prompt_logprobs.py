"""Logprobs of a prompt's tokens, all but the first.

    hidden states [n, D] of a chunk --head, a slice of rows at a time--> logits --> logprobs

No tensor of all rows times the vocabulary exists: for 2,048 tokens it would take a gigabyte. A
prompt that is computed again, after a preemption, is read again from its first token on.

n = tokens of a chunk, D = model width.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from torch import Tensor

from baton.core.sampling import TokenLogprob
from baton.engine.passes.runner import Runner
from baton.engine.sampling.sampler import prompt_logprobs

MAX_LOGITS = 1 << 23
"""Logits of one slice: 32 MiB in float32."""


class PromptLogprobs:
    """The prompt logprobs of one request, collected chunk by chunk."""

    def __init__(self, prompt: Sequence[int], num_top: int) -> None:
        self._prompt = prompt
        self._num_top = num_top
        self._found: list[TokenLogprob] = []

    def read(self, start: int, hidden: Tensor, runner: Runner) -> None:
        """Read the hidden states [n, D] of the prompt's tokens from `start` on.

        All chunks must be read, in order. The hidden state of the last token is ignored: it
        predicts the first output token.
        """
        del self._found[start:]
        next_tokens = self._prompt[start + 1 : start + 1 + len(hidden)]
        num_rows = max(1, MAX_LOGITS // runner.info.vocab_size)
        for first in range(0, len(next_tokens), num_rows):
            wanted = next_tokens[first : first + num_rows]
            logits = runner.logits(hidden[first : first + len(wanted)])
            self._found += prompt_logprobs(logits, wanted, self._num_top)

    @property
    def are_finite(self) -> bool:
        """Whether all logits were finite. Checked here because a NaN in the last layer need not
        reach the next token's logits."""
        return all(isfinite(found.logprob) for found in self._found)

    def take(self) -> tuple[TokenLogprob, ...]:
        """The logprobs, after all of the prompt was read."""
        assert len(self._found) == len(self._prompt) - 1
        return tuple(self._found)
