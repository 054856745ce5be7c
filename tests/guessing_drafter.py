"""A drafter that knows the answers, and errs now and then: drafts of all kinds come of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from baton.engine.request.request import Request
from baton.engine.speculation.draft_budget import FixedBudget
from baton.engine.speculation.drafter import Draft, Drafter
from baton.engine.speculation.speculation import Speculation


class GuessingDrafter:
    """`answers` by the id of the request; every `errs_every`th token of them is wrong."""

    name = "guessing"
    is_costly = False

    def __init__(self, answers: Mapping[str, Sequence[int]], errs_every: int) -> None:
        self._answers = answers
        self._errs_every = errs_every

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        return [self._propose(request, max_tokens) for request in requests]

    def forget(self, request: Request) -> None:
        """It keeps nothing."""

    def _propose(self, request: Request, max_tokens: int) -> Draft:
        first = len(request.output)
        answer = self._answers[request.request_id][first : first + max_tokens]
        tokens = [token ^ ((first + at) % self._errs_every == 0) for at, token in enumerate(answer)]
        return Draft(tokens, [0.5] * len(tokens))


class ErringDrafter:
    """What another drafts, every `errs_every`th position of an output wrong."""

    name = "erring"
    is_costly = False

    def __init__(self, drafter: Drafter, errs_every: int) -> None:
        self._drafter = drafter
        self._errs_every = errs_every

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        drafts = self._drafter.propose(requests, max_tokens)
        return [self._spoilt(*each) for each in zip(requests, drafts, strict=True)]

    def forget(self, request: Request) -> None:
        self._drafter.forget(request)

    def _spoilt(self, request: Request, draft: Draft) -> Draft:
        first = len(request.output)
        tokens = [
            token ^ ((first + at) % self._errs_every == 0) for at, token in enumerate(draft.tokens)
        ]
        return Draft(tokens, draft.confidences)


def guessing(
    answers: Mapping[str, Sequence[int]], max_tokens: int, *, errs_every: int = 4
) -> Speculation:
    """All of it is verified, whatever it takes."""
    return Speculation(GuessingDrafter(answers, errs_every), FixedBudget(max_tokens))
