"""Suffix matching (as SuffixDecoding, Oliaro et al. 2024): what followed the request's last tokens,
in itself and in recently finished outputs, as far as most matches agree.

    last tokens of the request        ... a b c
    after a b c, here and there       d e f  |  d e g  |  d x
    draft                             d  (3 of 3)   e  (2 of 3)   f  (1 of 2)

Longer matches count for more. Outputs are looked up for requests of the same tenant and salt only:
the speed of a request must not reveal what another one was answered.
"""

from __future__ import annotations

from collections.abc import Sequence

from baton.engine.request.request import Request
from baton.engine.speculation.drafter import NO_DRAFT, Draft
from baton.engine.speculation.token_index import RequestTexts, TokenIndex, common_suffix

MAX_MATCH = 32
"""Tokens of the longest match that counts; longer ones count as this."""
MAX_PLACES = 4
"""Occurrences that are looked at in each text."""
MIN_SHARE = 0.3
"""Least share of the weight that agrees on a token; below it the draft ends."""
MAX_RECENT, MAX_RECENT_IN_ALL = 32_768, 1 << 20
"""Tokens of ended outputs that are kept for one salt (then the older half is forgotten), and for
all: 20 bytes each. Then the salt goes that was not used for longest."""
GAP = -1
"""Separator between outputs: no token."""

Salt = tuple[str, bytes]


_Match = tuple[list[int], int]
"""What stands behind a match, as far as a draft may be long, and the length of the match."""


class SuffixDrafter:
    name = "suffix"
    is_costly = False

    def __init__(self) -> None:
        self._texts = RequestTexts()
        self._recent: dict[Salt, TokenIndex] = {}
        """The least recently used first."""
        self._num_recent = 0
        """Tokens of all of them."""

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        indexes = self._texts.follow(requests)
        return [
            self._propose(request, index, max_tokens)
            for request, index in zip(requests, indexes, strict=True)
        ]

    def forget(self, request: Request) -> None:
        """Its output is kept, whether it was drafted for or not."""
        self._texts.forget(request)
        if not request.output:
            return
        salt = request.tenant, request.salt
        recent = self._recent.pop(salt, None) or TokenIndex()
        self._num_recent -= len(recent)
        if len(recent) + len(request.output) > MAX_RECENT:
            younger = recent.tokens[-MAX_RECENT // 2 :]
            recent = TokenIndex()
            recent.extend(younger)
        recent.extend([*request.output[-MAX_RECENT // 2 :], GAP])
        self._recent[salt] = recent
        self._num_recent += len(recent)
        while self._num_recent > MAX_RECENT_IN_ALL:
            oldest = self._recent.pop(next(iter(self._recent)))
            self._num_recent -= len(oldest)

    def _propose(self, request: Request, index: TokenIndex, max_tokens: int) -> Draft:
        tokens = request.tokens
        if len(tokens) < 2:
            return NO_DRAFT
        matches = _matches(index, tokens, max_tokens)
        recent = self._recent.get((request.tenant, request.salt))
        if recent is not None:
            matches += _matches(recent, tokens, max_tokens)
        return _agreed(matches, max_tokens) if matches else NO_DRAFT


def _matches(index: TokenIndex, tokens: Sequence[int], max_tokens: int) -> list[_Match]:
    text = index.tokens
    return [
        (text[place : place + max_tokens], common_suffix(text, place, tokens, MAX_MATCH))
        for place in index.behind((tokens[-2], tokens[-1]), MAX_PLACES)
    ]


def _agreed(matches: Sequence[_Match], max_tokens: int) -> Draft:
    """Token by token what has the most weight; who disagrees has no say in what follows."""
    longest = max([length for _, length in matches])
    left = [match for match in matches if 2 * match[1] > longest]
    sure = min(1.0, longest / 8)
    tokens: list[int] = []
    confidences: list[float] = []
    while left and len(tokens) < max_tokens:
        at, first = len(tokens), left[0][0]
        if all([behind == first for behind, _ in left]):
            rest = first[at : first.index(GAP, at)] if GAP in first[at:] else first[at:]
            tokens += rest
            confidences += [sure] * len(rest)
            break
        weights: dict[int, int] = {}
        for behind, length in left:
            token = behind[at] if at < len(behind) else GAP
            weights[token] = weights.get(token, 0) + length
        best = max(weights, key=weights.__getitem__)
        share = weights[best] / sum(weights.values())
        if best == GAP or share < MIN_SHARE:
            break
        left = [match for match in left if at < len(match[0]) and match[0][at] == best]
        tokens.append(best)
        confidences.append(share * sure)
    return Draft(tokens, confidences)
