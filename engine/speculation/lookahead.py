"""Lookahead decoding (Fu et al. 2024, https://arxiv.org/abs/2402.02057) without special attention
masks: guesses are verified like other drafts, and the tokens that the model draws after wrong
guesses become better guesses (Jacobi iteration).

    known  ... c | drafted  x  y  z       drawn after them   x  v  w  u
    known  ... c x v                      guessed next           w  u         drawn after y and z
    n-grams      c x y w   x y z u        a row's input and the token drawn after it

The n-grams that arise in this way go into a pool, together with those of the text itself. A draft
is built by looking up the last token in the pool, appending what follows it there, and so on. Where
the pool has nothing it appends the guess for that position or, once the draft has begun, an
arbitrary token, which the model's draws will refine.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from baton.engine.request.request import Request
from baton.engine.speculation.drafter import NO_DRAFT, Draft
from baton.engine.speculation.ngram_pool import LENGTH, MAX_NGRAMS, Match, NgramPool

MAX_POOLED = 2048
"""Most tokens of text whose n-grams are added in one step, over all requests; takes about 3 ms."""
IN_PLACE, ELSEWHERE = (0.8, 0.9), (0.3, 0.65)
"""Confidences of an n-gram's second token and of its later ones: if the token before the n-gram is
the same as when it was seen, and if not."""
AS_GUESSED, GUESSED, ANY = 0.55, 0.14, 0.03
"""Confidences of an n-gram's second token that equals the guess, of a guess alone, and of an
arbitrary token, which is verified only where additional rows cost nothing."""
NO_TOKEN = -1


@dataclass(slots=True)
class _Trajectory:
    """One request's guesses and n-grams."""

    pool: NgramPool = field(default_factory=NgramPool)
    num_pooled: int = 0
    """Number of tokens of the text whose n-grams have been added to the pool."""
    guesses: Sequence[int] = ()
    start: int = 0
    """The position of the first of `guesses`."""
    drawn: tuple[Sequence[int], Sequence[int], int] | None = None
    """The draft tokens and the drawn tokens of the last pass, and the position of the first of
    both."""

    def guess(self, position: int) -> int | None:
        """The guessed token at `position`; None if there is none."""
        at = position - self.start
        return self.guesses[at] if 0 <= at < len(self.guesses) else None


class LookaheadDrafter:
    """A `Drafter` and `Refiner`."""

    name = "lookahead"
    is_costly = False

    def __init__(self) -> None:
        self._trajectories: dict[Request, _Trajectory] = {}

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        left, drafts = MAX_POOLED, []
        for request in requests:
            one = self._of(request)
            _refine(one, request.tokens)
            left -= _pool_text(one, request.tokens, left)
            drafts.append(_draft(one, request.tokens, max_tokens))
        return drafts

    def drew(self, request: Request, drafted: Sequence[int], drawn: Sequence[int]) -> None:
        """Note what was drawn; it is taken in by the next `propose`."""
        self._of(request).drawn = drafted, drawn, len(request.tokens)

    def forget(self, request: Request) -> None:
        self._trajectories.pop(request, None)

    def _of(self, request: Request) -> _Trajectory:
        return self._trajectories.setdefault(request, _Trajectory())


def _refine(one: _Trajectory, tokens: Sequence[int]) -> None:
    """Turn what was drawn after rejected draft tokens into guesses and n-grams."""
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
            before, first, *continuation = computed[stop - LENGTH : stop]
            one.pool.add(before, first, (*continuation, drawn[at]))


def _pool_text(one: _Trajectory, tokens: Sequence[int], max_tokens: int) -> int:
    """Add n-grams of new text, beginning at most `max_tokens` tokens; returns how many."""
    first = max(one.num_pooled, len(tokens) - MAX_NGRAMS)
    stop = min(len(tokens) - LENGTH + 1, first + max_tokens)
    for at in range(first, stop):
        before = tokens[at - 1] if at else NO_TOKEN
        one.pool.add(before, tokens[at], tuple(tokens[at + 1 : at + LENGTH]))
    one.num_pooled = max(one.num_pooled, stop)
    return max(0, stop - first)


def _draft(one: _Trajectory, tokens: Sequence[int], max_tokens: int) -> Draft:
    """A draft from the pool and the guesses; empty if neither has a first token."""
    drafted: list[int] = []
    confidences: list[float] = []
    before, last = [NO_TOKEN, *tokens[-2:]][-2:]
    while len(drafted) < max_tokens:
        guess = one.guess(len(tokens) + len(drafted))
        match = one.pool.find(before, last, guess)
        if match is not None:
            drafted += match.continuation
            confidences += _confidences(match)
            before, last = match.continuation[-2:]
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
    """The confidence of each token of `match.continuation`."""
    second, later = IN_PLACE if match.is_in_place else ELSEWHERE
    if match.is_as_guessed:
        second = max(second, AS_GUESSED)
    return [second, *[later] * (len(match.continuation) - 1)]
