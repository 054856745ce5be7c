"""Logs failures of prefill replicas. One that stands still fails every request that is sent to it:

    first failure of a kind     a warning
    further ones of that kind   counted; at most one warning a minute, with their number
    a prompt computed there     a line that it works again, once after each warning

A request's own failures are all in its receipt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass

from baton.core.clock import Clock
from baton.core.errors import BatonError
from baton.core.ids import ReplicaId

log = logging.getLogger(__name__)

LOGGED_EACH_S = 60.0
FORGOTTEN_AFTER_S = 10 * LOGGED_EACH_S
"""Seconds after its last warning: most of those replicas are gone by then."""


@dataclass(slots=True)
class _Failing:
    logged_at_s: float
    num_unlogged: int = 0
    """Failures since the last warning."""
    has_worked: bool = False
    """Whether it has computed a prompt since."""


class PrefillFailures:
    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._failing: dict[tuple[ReplicaId, type[BatonError]], _Failing] = {}

    def failed(
        self, replica: ReplicaId, error: BatonError, engine_id: str, about: Mapping[str, str]
    ) -> None:
        """`about`: the log record's further fields."""
        now, kind = self._clock(), (replica, type(error))
        known = self._failing.get(kind)
        if known is not None and now < known.logged_at_s + LOGGED_EACH_S:
            known.num_unlogged += 1
            return
        more = ""
        if known is not None and known.num_unlogged:
            more = f" ({known.num_unlogged} more failures like it since the last warning)"
        log.warning("%s: %s%s", engine_id, error, more, extra=about)
        self._forget(now)
        self._failing[kind] = _Failing(now)

    def worked(self, replica: ReplicaId) -> None:
        """It has computed a prompt."""
        failing = [
            known
            for (failed, _), known in self._failing.items()
            if failed == replica and not known.has_worked
        ]
        for known in failing:
            known.has_worked = True
        if failing:
            log.info("%s computes prompts again", replica)

    def _forget(self, now: float) -> None:
        oldest = now - FORGOTTEN_AFTER_S
        self._failing = {kind: it for kind, it in self._failing.items() if it.logged_at_s > oldest}
