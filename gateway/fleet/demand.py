"""What a replica is told of the requests that wait at this gateway, and of the credit in force.

The number is told as the next power of two, so that a line of changing length is news to a thousand
replicas only now and then; that nothing waits any more is told after `KEEP_S` without requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton.core.replicas import Demand

COALESCE_S = 0.05
KEEP_S = 1.0


class DemandReporter:
    """The demand told on one stream. Belongs to an event loop; `send` is called with each word."""

    def __init__(self, send: Callable[[Demand], None]) -> None:
        self._send = send
        self._wanted = (0, 0)
        self._told = Demand()
        self._credit_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait_s = 0.0
        """The timer's."""

    def want(self, num_requests: int, num_tokens: int) -> None:
        """So much waits for any replica of the role."""
        self._wanted = (rounded(num_requests), rounded(num_tokens))
        told = (self._told.num_requests, self._told.num_tokens)
        wait_s = COALESCE_S if any(self._wanted) else KEEP_S
        if self._wanted == told or (self._timer is not None and self._wait_s <= wait_s):
            return
        self.close()
        if any(told):
            self._wait_s = wait_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._tell)
        else:
            self._tell()

    def go_by(self, credit_id: int) -> None:
        """Whatever is sent from now on is sent by this credit. The first of a stream is taken for
        granted: a new gateway need not say so to a thousand replicas."""
        if credit_id == self._credit_id:
            return
        is_first, self._credit_id = not self._credit_id, credit_id
        if is_first and self._told == Demand():
            self._told = Demand(credit_id=credit_id)
            if not any(self._wanted):
                return
        self._tell()

    def restart(self) -> None:
        """On a new stream nothing has been told."""
        self.close()
        self._credit_id, self._told = 0, Demand()

    def close(self) -> None:
        """Nothing more is sent. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _tell(self) -> None:
        self.close()
        num_requests, num_tokens = self._wanted
        told = Demand(num_requests=num_requests, num_tokens=num_tokens, credit_id=self._credit_id)
        if told != self._told:
            self._told = told
            self._send(told)


def rounded(number: int) -> int:
    """As it is told: the next power of two."""
    return 1 << (number - 1).bit_length() if number else 0
