"""The connections of one port: limits on open ones, and counts of those refused or cut off.

Each refused or cut-off connection is counted by its reason. The log has at most one line per reason
and minute, with the last address, so that clients cannot flood it.
"""

from __future__ import annotations

import logging
import resource
from collections import Counter as Tally
from enum import StrEnum

from baton.core.clock import Clock, monotonic
from baton.core.metrics import Counter
from baton.gateway.access.config import GatewayConfig

log = logging.getLogger(__name__)

SPARE_FILES = 256
"""Open files of a process that are not connections of clients."""
LOGGED_EACH_S = 60.0
ADMIN_CONNECTIONS = 64


class Refusal(StrEnum):
    TOO_MANY = "too many connections"
    TOO_MANY_OF_ADDRESS = "too many connections of one address"
    HANDSHAKE = "failed handshake"
    LATE_HEADERS = "late headers"
    LARGE_HEADERS = "large headers"
    LATE_REQUEST = "late request"
    TOO_MANY_REQUESTS = "too many requests at once"
    MALFORMED = "malformed"
    UNREAD = "unread answer"


class Connections:
    def __init__(
        self,
        *,
        max_open: int,
        max_of_address: int | None = None,
        refused: Counter,
        clock: Clock = monotonic,
    ) -> None:
        """`refused` counts by reason."""
        self.num_open = 0
        self._max_open = max_open
        self._max_of_address = max_of_address
        self._num_by_address = Tally[str]()
        self._refused = refused
        self._clock = clock
        self._quiet_until_s: dict[Refusal, float] = {}

    def open(self, address: str) -> Refusal | None:
        """Count a new connection, or return why it is refused."""
        if self.num_open >= self._max_open:
            return Refusal.TOO_MANY
        limit = self._max_of_address
        if limit is not None and self._num_by_address[address] >= limit:
            return Refusal.TOO_MANY_OF_ADDRESS
        self.num_open += 1
        self._num_by_address[address] += 1
        return None

    def close(self, address: str) -> None:
        """Free the place of a connection that was counted in."""
        self.num_open -= 1
        self._num_by_address[address] -= 1
        if not self._num_by_address[address]:
            del self._num_by_address[address]

    def refuse(self, why: Refusal, address: str) -> None:
        """Count a refused connection, and log it."""
        self._refused.add(1, why)
        now = self._clock()
        if now >= self._quiet_until_s.get(why, now):
            self._quiet_until_s[why] = now + LOGGED_EACH_S
            log.warning("a connection from %s was ended: %s", address or "nowhere", why)


def public_connections(config: GatewayConfig, refused: Counter) -> Connections:
    return Connections(
        max_open=num_affordable(config.max_connections),
        max_of_address=config.max_connections_per_address,
        refused=refused,
    )


def admin_connections(refused: Counter) -> Connections:
    """The connections of the admin port, with a limit of its own that clients cannot use up."""
    return Connections(max_open=ADMIN_CONNECTIONS, refused=refused)


def num_affordable(asked: int) -> int:
    """The connections, up to `asked` for HTTP and as many for gRPC, that the process's limit of
    open files allows."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if limit == resource.RLIM_INFINITY:
        return asked
    affordable = max(1, (limit - SPARE_FILES) // 2)
    if affordable < asked:
        log.warning(
            "gateway.max_connections: %d, not %d, as this process may have %d files open "
            "(ulimit -n)",
            affordable,
            asked,
            limit,
        )
    return min(asked, affordable)
