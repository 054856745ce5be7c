"""Searchable indexes of requests' tokens, extended as the requests grow."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from baton.engine.request.request import Request
from baton.kernels.drafting.token_text import PIECE, TokenText


class RequestTexts:
    """An index of each request's tokens. One step indexes a limited number of tokens, over all
    requests; the rest waits. Requests that had to wait come first in the next step, in turn, so
    that none waits for a whole long prompt of another.
    """

    def __init__(self, new_text: Callable[[], TokenText]) -> None:
        self._new_text = new_text
        self._indexes: dict[Request, TokenText] = {}
        self._waiting: list[Request] = []
        """Requests whose index lacks some of their tokens; those that had no turn in the last step
        come first."""

    def follow(self, requests: Sequence[Request]) -> list[TokenText]:
        """Extend the indexes and return that of each request. An index may lack the last tokens of
        its request."""
        left, by_request = PIECE, self._indexes
        passed_over: list[Request] = []
        served: list[Request] = []
        for request in self._in_turn(requests) if self._waiting else requests:
            index = by_request.get(request)
            if index is None:
                index = by_request[request] = self._new_text()
            num_known, num_tokens = len(index), len(request.tokens)
            num_new = min(num_tokens - num_known, left)
            num_touched = index.num_touched(num_new)
            if num_new and (num_touched <= left or left == PIECE):
                index.extend(request.tokens[num_known : num_known + num_new])
                left = max(left - num_touched, 0)
                if num_known + num_new < num_tokens:
                    served.append(request)
            elif num_known < num_tokens:
                passed_over.append(request)
        self._waiting = [*passed_over, *served]
        return [by_request[request] for request in requests]

    def _in_turn(self, requests: Sequence[Request]) -> Iterable[Request]:
        asked = set(requests)
        return dict.fromkeys((*(one for one in self._waiting if one in asked), *requests))

    def forget(self, request: Request) -> None:
        self._indexes.pop(request, None)
        if request in self._waiting:
            self._waiting.remove(request)
