"""The embedding of a prompt: its hidden states, after the last norm, become one vector.

    MEAN     of all tokens, summed in float32 while the chunks come
    LAST     of the last token
    LOGITS   of the last token, through the head: all logits of a classifier, or those of tokens

A prompt that is computed again, after a preemption, is summed again from its first token on.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.core.messages import Pooling


class Embedding:
    """The pooled vector of one request, collected chunk by chunk."""

    def __init__(self, pooling: Pooling, tokens: Sequence[int] = ()) -> None:
        """`tokens` selects the logits; empty: all of them."""
        self.needs_every_token = pooling is Pooling.MEAN
        self.is_of_logits = pooling is Pooling.LOGITS
        self.tokens = list(tokens)
        self._num_tokens = 0
        self._sum: Tensor | None = None  # [D] float32

    def read(self, start: int, rows: Tensor) -> None:
        """Read the hidden states [n, D], or the logits [n, V], of the tokens from `start` on.

        For MEAN all tokens must be read, in order; otherwise only the last one.
        """
        if start == 0:
            self._sum, self._num_tokens = None, 0
        added = rows.float().sum(dim=0)
        self._sum = added if self._sum is None else self._sum + added
        self._num_tokens += len(rows)

    def vector(self) -> tuple[float, ...]:
        """The embedding [D], or one logit per token, after all of the prompt was read."""
        assert self._sum is not None
        found = self._sum / self._num_tokens
        if self.is_of_logits and self.tokens:
            found = found[self.tokens]
        return tuple(found.tolist())
