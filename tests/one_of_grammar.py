"""A grammar of one token, to sample under without a tokenizer."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from baton.kernels.sampling.token_mask import pack_tokens


class OneOf:
    """A matcher whose next token is one of these, and whose vocabulary has any size."""

    def __init__(self, *tokens: int) -> None:
        self.tokens = tokens
        self._mask = pack_tokens(tokens, max(tokens) + 1)

    def fill_mask(self, mask: Tensor) -> None:
        mask.zero_()[: len(self._mask)] = self._mask

    def num_allowed(self, tokens: Sequence[int]) -> int:
        return 0

    def look_ahead(self, tokens: Sequence[int]) -> list[Tensor]:
        return []

    def accept(self, tokens: Sequence[int]) -> None:
        raise AssertionError("one draw only")
