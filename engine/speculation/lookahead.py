"""Lookahead decoding (Fu et al. 2024) without masks: guesses are verified as drafts, and what the
model draws after wrong ones are better guesses (Jacobi iterations).

    known  ... c | drafted  x  y  z       drawn after them   x  v  w  u
    known  ... c x v                      guessed next           w  u         drawn after y and z
    n-grams      c x y w   x y z u        a row's input and what was drawn after it

N-grams that arise in this way, and those of the text itself, are pooled. A draft is what they say
after the last token, then after that; where they say nothing, the guess for that position, or, at
the end of a draft, any token.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.request.request import Request
from baton.engine.speculation.drafter import NO_DRAFT, Draft
from baton.engine.speculation.ngram_pool import LENGTH, MAX_NGRAMS, Match, NgramPool

STRETCH = 2048
"""Tokens of texts that one step pools, of all requests; 3 ms."""
IN_PLACE, ELSEWHERE = (0.8, 0.9), (0.3, 0.65)
"""Confidences of an n-gram's second token and of those behind it: where the token before it is the
same, and else."""
AS_GUESSED, GUESSED, ANY = 0.55, 0.14, 0.03
"""Confidences of a second token that is as guessed, of what is only guessed, and of what is only
there to be refined: it costs a row where rows are free."""
NO_TOKEN = -1


@dataclass(slots=True)
class _Trajectory:
    """One request's guesses and n-grams."""

    pool: NgramPool = field(default_factory=NgramPool)
    num_pooled: int = 0
    """Tokens of the text whose n-grams are in the pool, or were."""
    guesses: Sequence[int] = ()
    start: int = 0
    """The position of the first of them."""
    drawn: tuple[Sequence[int], Sequence[int], int] | None = None
    """What was drafted, what was drawn and the position of both, of the last pass."""

    def guess(self, position: int) -> int | None:
        at = position - self.start
        return self.guesses[at] if 0 <= at < len(self.guesses) else None


class LookaheadDrafter:
    name = "lookahead"
    is_costly = False

    def __init__(self) -> None:
        self._trajectories: dict[Request, _Trajectory] = {}

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        left, drafts = STRETCH, []
        for request in requests:
            one = self._of(request)
            _refine(one, request.tokens)
            left -= _pool_text(one, request.tokens, left)
            drafts.append(_draft(one, request.tokens, max_tokens))
        return drafts

    def drew(self, request: Request, drafted: Sequence[int], drawn: Sequence[int]) -> None:
        """Its work waits for the next draft."""
        self._of(request).drawn = drafted, drawn, len(request.tokens)

    def forget(self, request: Request) -> None:
        self._trajectories.pop(request, None)

    def _of(self, request: Request) -> _Trajectory:
        return self._trajectories.setdefault(request, _Trajectory())


def _refine(one: _Trajectory, tokens: Sequence[int]) -> None:
    """What was drawn behind wrong drafts: better guesses of what comes, and new n-grams."""
    if one.drawn is None:
        return
    drafted, drawn, position = one.drawn
    one.drawn = None
    num_right = 0
    while num_right < len(drafted) and drafted[num_right] == drawn[num_right]:
        num_right += 1
    one.guesses, one.start = drawn[num_right + 1 :], position + num_right + 1
    known = tokens[max(0, position - LENGTH) : position]
    computed = [*known, *drafted]
    for at in range(num_right + 1, len(drawn)):
        stop = len(known) + at
        if stop >= LENGTH:
            before, first, *behind = computed[stop - LENGTH : stop]
            one.pool.add(before, first, (*behind, drawn[at]))


def _pool_text(one: _Trajectory, tokens: Sequence[int], max_tokens: int) -> int:
    """Pool what is new of the text, of so many tokens; how many it were."""
    first = max(one.num_pooled, len(tokens) - MAX_NGRAMS)
    stop = min(len(tokens) - LENGTH + 1, first + max_tokens)
    for at in range(first, stop):
        before = tokens[at - 1] if at else NO_TOKEN
        one.pool.add(before, tokens[at], tuple(tokens[at + 1 : at + LENGTH]))
    one.num_pooled = max(one.num_pooled, stop)
    return max(0, stop - first)


def _draft(one: _Trajectory, tokens: Sequence[int], max_tokens: int) -> Draft:
    """Empty where nothing says what comes first."""
    drafted: list[int] = []
    confidences: list[float] = []
    before, last = [NO_TOKEN, *tokens[-2:]][-2:]
    while len(drafted) < max_tokens:
        guess = one.guess(len(tokens) + len(drafted))
        match = one.pool.find(before, last, guess)
        if match is not None:
            drafted += match.behind
            confidences += _confidences(match)
            before, last = match.behind[-2:]
            continue
        if guess is not None:
            token, confidence = guess, GUESSED
        elif drafted:
            token, confidence = tokens[-1 - len(drafted) % len(tokens)], ANY
        else:
            return NO_DRAFT
        drafted.append(token)
        confidences.append(confidence)
        before, last = last, token
    return Draft(drafted[:max_tokens], confidences[:max_tokens])


def _confidences(match: Match) -> list[float]:
    second, behind = IN_PLACE if match.is_in_place else ELSEWHERE
    if match.is_as_guessed:
        second = max(second, AS_GUESSED)
    return [second, *[behind] * (len(match.behind) - 1)]
