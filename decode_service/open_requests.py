"""The requests open on a decode replica, and which attempts it has seen.

`(request id, attempt)` makes Generate idempotent: an attempt is admitted once, and a higher one
fences a lower one, whose tokens are no longer wanted.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator

from baton.core.ids import RequestId
from baton.decode_service.generating import Generating
from baton.decode_service.session import GatewaySession

MAX_REMEMBERED = 10_000
"""Requests that are over, and whose late duplicates are still recognised."""


class OpenRequests:
    def __init__(self) -> None:
        self._by_request: dict[RequestId, Generating] = {}
        self._by_engine_id: dict[str, Generating] = {}
        self._last_attempt: OrderedDict[RequestId, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self._by_request)

    def __iter__(self) -> Iterator[Generating]:
        """All of them, also while some end."""
        return iter(tuple(self._by_request.values()))

    def last_attempt(self, request_id: RequestId) -> int:
        """The highest seen; 0 for a request that is new."""
        return self._last_attempt.get(request_id, 0)

    def add(self, generating: Generating) -> None:
        message = generating.message
        self._by_request[message.request_id] = generating
        self._by_engine_id[generating.engine_id] = generating
        self._last_attempt[message.request_id] = message.attempt
        self._last_attempt.move_to_end(message.request_id)
        while len(self._last_attempt) > MAX_REMEMBERED:
            self._last_attempt.popitem(last=False)

    def remove(self, generating: Generating) -> None:
        del self._by_request[generating.message.request_id]
        del self._by_engine_id[generating.engine_id]

    def get(self, request_id: RequestId) -> Generating | None:
        return self._by_request.get(request_id)

    def by_engine_id(self, engine_id: str) -> Generating | None:
        return self._by_engine_id.get(engine_id)

    def of_session(self, session: GatewaySession) -> list[Generating]:
        return [generating for generating in self if generating.session is session]

    @property
    def num_queued_tokens(self) -> int:
        return sum(generating.num_queued_tokens for generating in self._by_request.values())
