"""Structured output: follows a grammar token by token with llguidance.

    compile -> matcher at its first state --accept--> next state --accept--> ... --accept EOS--> end

A state's mask is computed when the state is reached, which usually takes a few hundred
microseconds. So a grammar that becomes too costly fails in `accept`, for its own request only, and
`fill_mask` is a copy. V is the number of the model's logits, which may differ from the tokenizer's
number of tokens.
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
        """The compiler for a model folder. `tokenizer.json` is read for the first grammar only, so
        a replica without grammars needs none."""
        path = folder / "tokenizer.json"

        def read_tokenizer() -> str:
            try:
                return path.read_text(encoding="utf-8")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidRequest(
                    f"grammars need the tokenizer, and {path} cannot be read: {error}"
                ) from error

        return cls(
            GrammarChecker(read_tokenizer, info.eos_token_ids),
            vocab_size=info.vocab_size,
            eos_token_ids=info.eos_token_ids,
        )

    def compile(self, grammar: Grammar) -> LlGuidanceMatcher:
        """See `GrammarCompiler`."""
        if not self._eos_token_ids:
            raise InvalidRequest(
                "this model has no end-of-sequence token, so output that follows a grammar could "
                "not end; leave the grammar out"
            )
        return LlGuidanceMatcher(
            self._checker.start(grammar), self._vocab_size, self._eos_token_ids
        )


class LlGuidanceMatcher:
    """A `TokenMatcher` of llguidance."""

    def __init__(self, state: LLMatcher, vocab_size: int, eos_token_ids: frozenset[int]) -> None:
        self._state = state
        self._vocab_size = vocab_size
        self._eos_token_ids = eos_token_ids
        self._has_ended = False
        self._mask = self._next_mask()

    def fill_mask(self, mask: Tensor) -> None:
        mask.copy_(self._mask)

    def num_allowed(self, tokens: Sequence[int]) -> int:
        # On a copy, because a token unknown to the tokenizer makes the state unusable.
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
            except InvalidRequest:  # raised by `accept` if the request really gets this token
                break
            masks.append(scout._mask)
        return masks

    def accept(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._accept_one(token)
        if tokens:
            self._mask = self._next_mask()

    def _accept_one(self, token: int) -> None:
        # The end is tracked here: llguidance accepts an EOS token in some of its final states only.
        if token in self._eos_token_ids and (self._has_ended or self._state.is_accepting()):
            self._has_ended = True
        elif self._has_ended:
            raise InvalidRequest(f"token {token} comes after the end of the grammar's output")
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
    """`mask` cut or padded with zeros to the model's number of logits. Raises InvalidRequest if no
    token is left."""
    size = num_words(vocab_size)
    mask = torch.nn.functional.pad(mask, (0, max(0, size - len(mask))))[:size]
    if num_inside := vocab_size % WORD_BITS:  # tokens of the last word
        mask[-1] &= (1 << num_inside) - 1
    if not mask.any():
        raise InvalidRequest("no token of this model can continue the grammar")
    return mask
