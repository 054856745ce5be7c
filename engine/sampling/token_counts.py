"""Counts of a request's tokens, updated as its output grows."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class TokenCounts:
    """How often each token is in the output. The cost of `follow` grows only with the new part."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self._place_by_token = {token: place for place, token in enumerate(dict.fromkeys(prompt))}
        self._num_followed = 0
        self.tokens = array("q", self._place_by_token)
        """The distinct tokens of prompt and output."""
        self.counts = array("q", bytes(8 * len(self.tokens)))
        """How often each is in the output."""

    def with_tokens(self, tokens: Sequence[int]) -> TokenCounts:
        """A copy that has also counted `tokens`, as if the output had grown by them."""
        copy = TokenCounts(())
        copy._place_by_token = self._place_by_token.copy()
        copy.tokens, copy.counts = self.tokens[:], self.counts[:]
        copy.follow(tokens)
        copy._num_followed = self._num_followed + len(tokens)
        return copy

    def follow(self, output: Sequence[int]) -> None:
        """Count what was appended to `output` since the last time."""
        for token in output[self._num_followed :]:
            place = self._place_by_token.setdefault(token, len(self.tokens))
            if place == len(self.tokens):
                self.tokens.append(token)
                self.counts.append(0)
            self.counts[place] += 1
        self._num_followed = len(output)
