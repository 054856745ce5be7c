"""The interface of drafters, which guess the tokens that requests will sample. Each method of
speculative decoding has a file of its own.

    propose(requests) -> one draft each -> some of their tokens are verified -> propose ...

A drafter sees which of its draft tokens were accepted from the requests' tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from torch import Tensor

from baton.engine.request.request import Request


class Draft(NamedTuple):
    tokens: Sequence[int]
    """The next tokens of a request, in order."""
    confidences: Sequence[float]
    """The drafter's confidence in each token, from 0 to 1, given that those before it are right. It
    need not be a probability: `AcceptanceRates` learns how often tokens of a confidence are
    accepted."""
    q: Sequence[Tensor] = ()
    """For the published acceptance rule (Leviathan et al. 2023): the distribution [V] that each
    token was drawn from, with noise independent of the model's. Empty if tokens were chosen in
    another way. A drafter that gives `q` must keep every token that it draws; tokens that may end
    the request have probability 0 in `q`, as they are never drafted."""


NO_DRAFT = Draft((), ())


class Refiner(Protocol):
    """A drafter that learns from the tokens that the model draws after draft tokens, including
    rejected ones. Belongs to the engine's thread."""

    def drew(self, request: Request, drafted: Sequence[int], drawn: Sequence[int]) -> None:
        """Take in what the model drew after the known tokens of `request` and after each of
        `drafted`: `drawn` has one token more than `drafted`."""


class Drafter(Protocol):
    """Belongs to the engine's thread."""

    name: str
    is_costly: bool
    """Whether the cost grows with the number of tokens drafted, so that the budget limits it."""

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        """A draft of at most `max_tokens` for each of `requests`, in order; some may be empty."""

    def forget(self, request: Request) -> None:
        """Forget a request that has left the engine; unknown ones are ignored."""
