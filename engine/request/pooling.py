"""The embedding of a prompt: its hidden states, after the last norm, become one vector.

    MEAN   of all tokens, summed in float32 while the chunks come
    LAST   of the last token

A prompt that is computed again, after a preemption, is summed again from its first token on.
"""

from __future__ import annotations

from torch import Tensor

from baton.core.messages import Pooling


class Embedding:
    def __init__(self, pooling: Pooling) -> None:
        self.needs_every_token = pooling is Pooling.MEAN
        self._num_tokens = 0
        self._sum: Tensor | None = None  # [D] float32

    def read(self, start: int, hidden: Tensor) -> None:
        """Take in the hidden states [n, D] of the tokens from `start` on.

        For MEAN all tokens come, in order; for LAST only the last one.
        """
        if start == 0:
            self._sum, self._num_tokens = None, 0
        added = hidden.float().sum(dim=0)
        self._sum = added if self._sum is None else self._sum + added
        self._num_tokens += len(hidden)

    def vector(self) -> tuple[float, ...]:
        """[D], once all of the prompt was read."""
        assert self._sum is not None
        return tuple((self._sum / self._num_tokens).tolist())
