"""The adapter's recent actions, and why it waits; for logs and `baton explain planner`."""

from __future__ import annotations

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

log = logging.getLogger(__name__)

KEPT = 64
"""Changes that are remembered."""

Cause = Literal[
    "conflict", "refused", "api", "ray", "upgrade", "unplanned", "unfit", "held", "limit",
    "quota", "pods",
]  # fmt: skip
"""Why groups do not have the wanted size, or could not be read.

conflict, refused, api   a concurrent change; a refusal by Kubernetes; no answer
ray, unplanned           Ray's dashboard does not answer; no application wants nodes made
upgrade                  KubeRay is replacing the cluster
unfit, held, limit       groups that cannot be used; that a person set; that may not grow
quota, pods              KubeRay may not make a pod; pods are not up yet
"""


@dataclass(frozen=True, slots=True)
class Reason:
    cause: Cause
    text: str


@dataclass(slots=True)
class Account:
    """Written by reconciliations, read by the page's thread."""

    wall_clock: Callable[[], float] = time.time
    looked_at: float | None = None
    """Unix time of the last look that could read all."""
    _since_by_reason: Mapping[Reason, float] = field(default_factory=dict)
    _done: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=KEPT))

    @property
    def reasons(self) -> tuple[Reason, ...]:
        return tuple(self._since_by_reason)

    def waits_for(self, reasons: Iterable[Reason]) -> None:
        """Set the reasons to wait from now on. Each is logged once, while it lasts."""
        before, now = self._since_by_reason, self.wall_clock()
        self._since_by_reason = {one: before.get(one, now) for one in reasons}
        for one in self._since_by_reason.keys() - before.keys():
            level = logging.INFO if one.cause == "pods" else logging.WARNING
            log.log(level, "%s", one.text)

    def looked(self) -> None:
        self.looked_at = self.wall_clock()

    def did(self, text: str) -> None:
        self._done.append((self.wall_clock(), text))
        log.info("%s", text)

    def explain(self) -> dict[str, Any]:
        """Times are Unix time."""
        return {
            "looked_at": self.looked_at,
            "waits": [
                {"cause": one.cause, "why": one.text, "since": since}
                for one, since in self._since_by_reason.items()
            ],
            "done": [{"at": at, "what": what} for at, what in reversed(self._done.copy())],
        }
