"""Following a grammar token by token, with llguidance.

    compile -> matcher at its first state --accept--> next state --accept--> ... --accept EOS--> end

Each state's mask is computed as the state is reached, a few hundred microseconds at most times; so
a grammar that becomes too costly fails in `accept`, for its own request, and filling in masks is a
copy. V is the number of the model's logits, which need not be that of the tokenizer's tokens.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar
from baton.engine.grammar.grammar_check import GrammarChecker, next_tokens, raise_if_failed
from baton.engine.models.config.info import ModelInfo
from baton.kernels.sampling.token_mask import WORD_BITS, num_words, pack_tokens

if TYPE_CHECKING:
    from llguidance import LLMatcher


class LlGuidanceCompiler:
    """A `GrammarCompiler` for one model. Safe to use from several threads."""

    def __init__(
        self, checker: GrammarChecker, *, vocab_size: int, eos_token_ids: Collection[int]
    ) -> None:
        self._checker = checker
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)

    @classmethod
    def from_folder(cls, folder: Path, info: ModelInfo) -> LlGuidanceCompiler:
        """`tokenizer.json` is read by the first grammar: a replica without any needs none."""
        path = folder / "tokenizer.json"

        def read_tokenizer() -> str:
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequest(
                    f"{path} cannot be read, so no grammar can: {error}"
                ) from error

        return cls(
            GrammarChecker(read_tokenizer, info.eos_token_ids),
            vocab_size=info.vocab_size,
            eos_token_ids=info.eos_token_ids,
        )

    def compile(self, grammar: Grammar) -> LlGuidanceMatcher:
        if not self._eos_token_ids:
            raise InvalidRequest(
                "this model names no end-of-sequence token, so nothing could end a sentence of the "
                "grammar; leave the grammar out"
            )
        return LlGuidanceMatcher(
            self._checker.start(grammar), self._vocab_size, self._eos_token_ids
        )


class LlGuidanceMatcher:
    """A `TokenMatcher`."""

    def __init__(self, state: LLMatcher, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._state = state
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._has_ended = False
        self._mask = self._next_mask()

    def fill_mask(self, mask: Tensor) -> None:
        mask.copy_(self._mask)

    def num_allowed(self, tokens: Sequence[int]) -> int:
        # On a copy: a token that the tokenizer does not know ends the use of what it is asked of.
        return 0 if self._has_ended else int(self._state.deep_copy().validate_tokens(list(tokens)))

    def look_ahead(self, tokens: Sequence[int]) -> list[Tensor]:
        masks: list[Tensor] = []
        scout = copy(self)
        scout._state = self._state.deep_copy()
        for token in tokens:
            if not _allows(scout._mask, token):
                break
            try:
                scout.accept((token,))
            except InvalidRequest:  # for the request to find out, should it come to this
                break
            masks.append(scout._mask)
        return masks

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._accept_one(token)
        if tokens:
            self._mask = self._next_mask()

    def _accept_one(self, token: int) -> None:
        # The end is kept here: llguidance takes an EOS token in some of its final states only.
        if token in self._eos_token_ids and (self._has_ended or self._state.is_accepting()):
            self._has_ended = True
        elif self._has_ended:
            raise InvalidRequest(f"token {token} stands behind the end of the grammar's sentence")
        elif not self._state.consume_token(token):
            raise_if_failed(self._state)

    def _next_mask(self) -> Tensor:
        if self._has_ended:
            return pack_tokens(self._eos_token_ids, self._vocab_size)
        mask = torch.frombuffer(bytearray(next_tokens(self._state)), dtype=torch.int32)
        return _resized(mask, self._vocab_size)


def _allows(mask: Tensor, token: int) -> bool:
    return bool(int(mask[token // WORD_BITS]) >> token % WORD_BITS & 1)


def _resized(mask: Tensor, vocab_size: int) -> Tensor:
    """`mask` for a model that has logits for fewer, or more, tokens than the tokenizer knows."""
    size = num_words(vocab_size)
    mask = torch.nn.functional.pad(mask, (0, max(0, size - len(mask))))[:size]
    if num_inside := vocab_size % WORD_BITS:  # tokens of the last word
        mask[-1] &= (1 << num_inside) - 1
    if not mask.any():
        raise InvalidRequest("no token of this model can continue the grammar")
    return mask
