"""Drafters, which guess the tokens that requests will sample: one file a method.

    propose(requests) -> a draft each -> some of their tokens are verified -> propose ...

A drafter learns the fate of its drafts from the requests: they have the tokens that were drawn.
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
    """How sure of each, from 0 to 1, if those before it are right; whatever it means, it is weighed
    against what came of others that were as sure."""
    q: Sequence[Tensor] = ()
    """[V] For each token: the distribution that it was drawn from, by chance of its own, for the
    published rule, which then judges by it. None if tokens were chosen in another way. Who gives it
    drew each token whatever it was, but for those that may end the request: of these q has none.
    """


NO_DRAFT = Draft((), ())


class Refiner(Protocol):
    """A drafter by what the model samples behind drafts, wrong ones among them. Belongs to the
    engine's thread."""

    def drew(self, request: Request, drafted: Sequence[int], drawn: Sequence[int]) -> None:
        """What the model says behind what `request` knows by now, and behind each of `drafted`."""


class Drafter(Protocol):
    """Belongs to the engine's thread."""

    name: str
    is_costly: bool
    """Whether the work grows with the tokens drafted, so that they are asked for with care."""

    def propose(self, requests: Sequence[Request], max_tokens: int) -> list[Draft]:
        """A draft for each of `requests`, perhaps an empty one."""

    def forget(self, request: Request) -> None:
        """Forget a request that has left the engine; unknown ones are ignored."""
