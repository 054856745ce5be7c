"""Reports to a replica: this gateway's waiting requests, and the credit in force.

Numbers are rounded up to a power of two, so that a line of changing length is rarely news to a
thousand replicas. An empty line is reported after `KEEP_S` without requests.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from baton.core.replicas import Demand

COALESCE_S = 0.05
KEEP_S = 1.0


class DemandReporter:
    """The demand reported on one stream. Belongs to an event loop; `send` is called with each
    message."""

    def __init__(self, send: Callable[[Demand], None]) -> None:
        self._send = send
        self._wanted = (0, 0)
        self._sent = Demand()
        self._credit_id = 0
        self._timer: asyncio.TimerHandle | None = None
        self._wait_s = 0.0
        """The delay of the running timer."""

    def want(self, num_requests: int, num_tokens: int) -> None:
        """Set what waits for any replica of the role."""
        self._wanted = (rounded(num_requests), rounded(num_tokens))
        sent = (self._sent.num_requests, self._sent.num_tokens)
        wait_s = COALESCE_S if any(self._wanted) else KEEP_S
        if self._wanted == sent or (self._timer is not None and self._wait_s <= wait_s):
            return
        self.close()
        if any(sent):
            self._wait_s = wait_s
            self._timer = asyncio.get_running_loop().call_later(wait_s, self._send_wanted)
        else:
            self._send_wanted()

    def go_by(self, credit_id: int) -> None:
        """Requests from now on are sent under this credit. The first credit of a stream is implied,
        so that a new gateway need not confirm it to a thousand replicas."""
        if credit_id == self._credit_id:
            return
        is_first, self._credit_id = not self._credit_id, credit_id
        if is_first and self._sent == Demand():
            self._sent = Demand(credit_id=credit_id)
            if not any(self._wanted):
                return
        self._send_wanted()

    def restart(self) -> None:
        """Begin again on a new stream, on which nothing was reported yet."""
        self.close()
        self._credit_id, self._sent = 0, Demand()

    def close(self) -> None:
        """Nothing more is sent. Safe to repeat."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _send_wanted(self) -> None:
        self.close()
        num_requests, num_tokens = self._wanted
        demand = Demand(num_requests=num_requests, num_tokens=num_tokens, credit_id=self._credit_id)
        if demand != self._sent:
            self._sent = demand
            self._send(demand)


def rounded(number: int) -> int:
    """The next power of two."""
    return 1 << (number - 1).bit_length() if number else 0
