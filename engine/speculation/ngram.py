"""Prompt lookup (Saxena 2023): what followed the last occurrence of the request's last tokens.

prompt + output   ... a b c d e ... a b          ->  c d e ...
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.request.request import Request
from baton.engine.speculation.drafter import NO_DRAFT, Draft
from baton.engine.speculation.token_index import RequestTexts, TokenIndex, common_suffix

MAX_MATCH = 4
"""Tokens of the longest match that is looked for."""
MAX_PLACES = 8
"""Occurrences that are looked at."""


class NgramDrafter:
    name = "ngram"
    is_costly = False

    def __init__(self) -> None:
        self._texts = RequestTexts()

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        indexes = self._texts.follow(requests)
        return [
            _draft(request.tokens, index, max_tokens)
            for request, index in zip(requests, indexes, strict=True)
        ]

    def forget(self, request: Request) -> None:
        self._texts.forget(request)


def _draft(tokens: Sequence[int], index: TokenIndex, max_tokens: int) -> Draft:
    if len(tokens) < 2:
        return NO_DRAFT
    places = index.behind((tokens[-2], tokens[-1]), MAX_PLACES)
    if not places:
        return NO_DRAFT
    lengths = [common_suffix(tokens, place, tokens, MAX_MATCH) for place in places]
    longest = max(lengths)
    place = places[lengths.index(longest)]
    draft = tokens[place : place + max_tokens]
    return Draft(draft, [longest / MAX_MATCH] * len(draft))
