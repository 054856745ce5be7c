"""Compilers of grammars that do as they are told."""

from __future__ import annotations

import threading
from collections.abc import Sequence

from torch import Tensor

from baton.core.errors import InvalidRequest
from baton.core.sampling import Grammar, GrammarKind

LETTERS = Grammar(GrammarKind.REGEX, "[a-z]+")


class AnyToken:
    """A `TokenMatcher` that allows everything, until `max_accepted` tokens were accepted."""

    def __init__(self, max_accepted: int | None = None) -> None:
        self.accepted: list[int] = []
        self._max_accepted = max_accepted

    def fill_mask(self, mask: Tensor) -> None:
        mask.fill_(-1)

    def num_allowed(self, tokens: Sequence[int]) -> int:
        return len(tokens)

    def look_ahead(self, tokens: Sequence[int]) -> list[Tensor]:
        raise AssertionError("nothing is drafted here")

    def accept(self, tokens: Sequence[int]) -> None:
        self.accepted.extend(tokens)
        if self._max_accepted is not None and len(self.accepted) > self._max_accepted:
            raise InvalidRequest("the grammar has become too costly")


class GatedCompiler:
    """A `GrammarCompiler` that is done when its gate opens."""

    def __init__(self, *, is_open: bool = False, max_accepted: int | None = None) -> None:
        self.gate = threading.Event()
        self.has_begun = threading.Event()
        self.matchers: list[AnyToken] = []
        self._max_accepted = max_accepted
        if is_open:
            self.gate.set()

    def compile(self, grammar: Grammar) -> AnyToken:
        self.has_begun.set()
        assert self.gate.wait(30)
        self.matchers.append(AnyToken(self._max_accepted))
        return self.matchers[-1]


class RefusingCompiler:
    def compile(self, grammar: Grammar) -> AnyToken:
        raise InvalidRequest(f"{grammar.source!r} is no grammar", field="response_format")
