"""Fault injection: faults are drawn from a seed, at named points where data crosses a process
boundary.

    rules, seed --> Chaos --draw(point)--> a rule whose fault is due, or None
                      ^ set(): changes the rules of a live system

Each rule has a random stream of its own, named by seed, process, and position in the list, so that
the faults of one point do not depend on how often others were passed. Off unless rules are set.
"""

from __future__ import annotations

import os
import signal
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from random import Random


class Fault(StrEnum):
    DROP = "drop"
    DELAY = "delay"
    DUPLICATE = "duplicate"
    REORDER = "reorder"
    CORRUPT = "corrupt"
    """One bit is flipped."""
    TRUNCATE = "truncate"
    CUT = "cut"
    """The connection breaks."""
    PARTITION = "partition"
    """The peer cannot be reached for `delay_s`, or what it sends does not arrive."""
    EXPIRE = "expire"
    """It ends before its time, while a peer still reads."""
    FULL = "full"
    """There is no room."""
    KILL = "kill"
    """The process ends at once, as by kill -9."""


_ON_ITS_WAY = frozenset(
    (Fault.DROP, Fault.DELAY, Fault.DUPLICATE, Fault.REORDER, Fault.CUT, Fault.KILL)
)

POINTS: Mapping[str, frozenset[Fault]] = {
    "transfer.open": frozenset((Fault.DELAY, Fault.CUT, Fault.PARTITION, Fault.KILL)),
    "transfer.piece": _ON_ITS_WAY | {Fault.CORRUPT, Fault.TRUNCATE, Fault.PARTITION},
    "transfer.lease": frozenset((Fault.EXPIRE,)),
    "transfer.settle": frozenset((Fault.DROP, Fault.DELAY, Fault.DUPLICATE, Fault.KILL)),
    "pool.reserve": frozenset((Fault.FULL,)),
    "tier.read": frozenset((Fault.DROP, Fault.DELAY, Fault.CORRUPT, Fault.TRUNCATE, Fault.KILL)),
    "tier.write": frozenset(
        (Fault.DROP, Fault.DELAY, Fault.CORRUPT, Fault.TRUNCATE, Fault.FULL, Fault.KILL)
    ),
    "registry.heartbeat": frozenset((Fault.DROP, Fault.DELAY, Fault.DUPLICATE)),
    "registry.watch": frozenset((Fault.DELAY, Fault.CUT)),
    "kv_events": frozenset((Fault.DROP, Fault.DELAY, Fault.DUPLICATE, Fault.REORDER, Fault.CUT)),
}
"""Points where faults can be injected, and which faults make sense there."""
AT_GATEWAYS = frozenset(("registry.watch",))
"""The points that gateways pass; replicas pass the others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ChaosRule:
    at: str
    """One of `POINTS`."""
    fault: Fault
    rate: float = 0.01
    """Share of the passes of the point in which the fault is injected."""
    delay_s: float = 0.05
    """The length of a delay, or of a partition."""
    max_times: int | None = None

    def __post_init__(self) -> None:
        if self.at not in POINTS:
            raise ValueError(f"no point is called {self.at!r}; there are {', '.join(POINTS)}")
        if self.fault not in POINTS[self.at]:
            possible = ", ".join(sorted(POINTS[self.at]))
            raise ValueError(f"{self.fault} cannot happen at {self.at}; what can: {possible}")
        if not 0 < self.rate <= 1:
            raise ValueError(f"rate must be in (0, 1], not {self.rate}")
        if not 0 <= self.delay_s < 3600:
            raise ValueError(f"delay_s must be between 0 and an hour, not {self.delay_s}")
        if self.max_times is not None and self.max_times < 1:
            raise ValueError(f"max_times must be at least 1, not {self.max_times}")


LAST_WORDS_S = 0.1
"""Between the answer to who has a process killed and its end, so that the answer gets out."""


def kill_this_process() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Chaos:
    """The faults of one process, which goes by `name`. Each point may be a thread's own."""

    def __init__(
        self,
        rules: Sequence[ChaosRule] = (),
        *,
        seed: int = 0,
        name: str = "",
        kill: Callable[[], None] = kill_this_process,
    ) -> None:
        self.injected: Counter[tuple[str, Fault]] = Counter()
        """Faults made since the process began, by point and fault."""
        self.name = name
        self.kill = kill
        """End this process, as by kill -9."""
        self._told: tuple[tuple[ChaosRule, ...], int] | None = None
        self.set(rules, seed)

    @property
    def rules(self) -> tuple[ChaosRule, ...]:
        return tuple(rule for rule, _ in self._armed)

    @property
    def is_on(self) -> bool:
        return bool(self._armed)

    def set(self, rules: Sequence[ChaosRule], seed: int) -> None:
        """Forget the rules so far; none at all ends the chaos.

        Given the same rules again, it continues where it is.
        """
        told = (tuple(rules), seed)
        if told == self._told:
            return
        self._told = told
        self._armed = [
            (rule, Random(f"{seed}/{self.name}/{number}/{rule.at}/{rule.fault}"))
            for number, rule in enumerate(rules)
        ]
        self._num_left = {
            number: rule.max_times
            for number, rule in enumerate(rules)
            if rule.max_times is not None
        }

    def draw(self, point: str) -> ChaosRule | None:
        """The rule whose fault is to be injected at `point` this time. A fault that kills does not
        return."""
        drawn: ChaosRule | None = None
        for number, (rule, random) in enumerate(self._armed):
            # Every rule of the point draws, whether or not an earlier one was drawn.
            if rule.at != point or random.random() >= rule.rate or drawn is not None:
                continue
            left = self._num_left.get(number)
            if left == 0:
                continue
            if left is not None:
                self._num_left[number] = left - 1
            drawn = rule
        if drawn is not None:
            self.injected[point, drawn.fault] += 1
            if drawn.fault is Fault.KILL:
                self.kill()
        return drawn

    def pick(self, below: int) -> int:
        """Which of `below` places gets the fault; follows from the number of faults before."""
        return Random(f"{self.name}/{self.injected.total()}").randrange(below)

    def as_metrics(self) -> dict[str, float]:
        """This process's chaos counters, by Prometheus name."""
        if not self.is_on and not self.injected:
            return {}
        return {
            "chaos_rules": len(self._armed),
            "chaos_faults_total": self.injected.total(),
        }
