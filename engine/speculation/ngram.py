"""Prompt lookup decoding (Saxena 2023): drafts the tokens that followed the last earlier occurrence
of the request's last tokens.

prompt + output   ... a b c d e ... a b          ->  c d e ...
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.request.request import Request
from baton.engine.speculation.drafter import NO_DRAFT, Draft
from baton.engine.speculation.request_texts import RequestTexts
from baton.kernels.drafting.look_up import LookUp
from baton.kernels.drafting.token_text import TokenText, kind_of_texts

LOOK_UP = LookUp(max_match=4, max_places=8)


class NgramDrafter:
    """A `Drafter` that looks up n-grams in the request's own tokens."""

    name = "ngram"
    is_costly = False

    def __init__(self) -> None:
        self._texts = RequestTexts(kind_of_texts())

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        texts = self._texts.follow(requests)
        return [
            _draft(request.tokens, text, max_tokens)
            for request, text in zip(requests, texts, strict=True)
        ]

    def forget(self, request: Request) -> None:
        self._texts.forget(request)


def _draft(tokens: Sequence[int], text: TokenText, max_tokens: int) -> Draft:
    place, length = text.longest(tokens, LOOK_UP)
    if not place:
        return NO_DRAFT
    draft = tokens[place : place + max_tokens]
    return Draft(draft, [length / LOOK_UP.max_match] * len(draft))
