"""A replica's client of several registries, which reports everything to each of them.

heartbeat      to each at its own interval; a hanging one does not delay the others
farewell       to all; a registry that misses it drops the silent replica later
starting       to all
may it leave?  more than half must answer, and none object: at least one registry then knows of any
               two replicas that ask, so that they do not both leave as the last
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

from baton.core.clock import Clock, monotonic
from baton.core.errors import Unavailable
from baton.core.ids import Epoch
from baton.core.replicas import HEARTBEAT_S, ReplicaInfo, StartingReplica

log = logging.getLogger(__name__)

T = TypeVar("T")

BEAT_S = 1.0
"""Seconds that a heartbeat waits for answers; later answers are taken with the next one."""
FAREWELL_S = 0.8
"""The same for a farewell: less than a leaving replica allows for it."""
SPARE_S = 1.5
"""The same for the question whether a replica may leave: less than the caller allows for it."""
STARTING_S = 2.0
EARLY = 0.15
"""Share of the interval by which a heartbeat may be early, since callers add jitter."""


class Line(Protocol):
    """A client of one registry, for a replica."""

    @property
    def is_cut(self) -> bool: ...
    async def heartbeat(self, info: ReplicaInfo) -> float: ...
    async def leave(self, epoch: Epoch) -> None: ...
    async def report_starting(self, starting: StartingReplica) -> float: ...
    async def spare(self, epoch: Epoch, may_be_last: bool) -> str: ...


NOW = float("-inf")


@dataclass(slots=True, eq=False)
class _Pulse:
    """The last report to one registry."""

    number: int
    asked: ReplicaInfo | None = None
    reporting: asyncio.Task[None] | None = None
    due_s: float = NOW
    beat_s: float = HEARTBEAT_S
    trouble: Exception | None = None

    @property
    def is_under_way(self) -> bool:
        return self.reporting is not None and not self.reporting.done()


class AllRegistries:
    """Belongs to an event loop; pickling keeps only the clients. Raises the last error if none has
    answered."""

    def __init__(self, lines: Sequence[Line], clock: Clock = monotonic) -> None:
        self._lines = tuple(lines)
        self._clock = clock
        self._pulses = tuple(map(_Pulse, range(len(lines))))

    def __reduce__(self) -> tuple[Any, ...]:
        return AllRegistries, (self._lines,)

    @property
    def is_cut(self) -> bool:
        return any(line.is_cut for line in self._lines) or any(
            pulse.due_s == NOW for pulse in self._pulses if not pulse.is_under_way
        )

    async def heartbeat(self, info: ReplicaInfo) -> float:
        """Report to the registries for which a heartbeat is due. Returns the seconds until the
        next."""
        started = [
            self._report(line, pulse, info)
            for line, pulse in zip(self._lines, self._pulses, strict=True)
            if self._is_due(line, pulse, info)
        ]
        try:
            if started:
                await asyncio.wait(started, timeout=BEAT_S)
        except asyncio.CancelledError:
            for reporting in started:
                reporting.cancel()
            raise
        troubles = [pulse.trouble for pulse in self._pulses if pulse.trouble is not None]
        if len(troubles) == len(self._pulses):
            raise troubles[-1]
        now = self._clock()
        rests = [max(0.0, it.due_s - now) for it in self._pulses if not it.is_under_way]
        return max(0.1, min(rests, default=HEARTBEAT_S))

    def _is_due(self, line: Line, pulse: _Pulse, info: ReplicaInfo) -> bool:
        if info != pulse.asked:
            return True
        early_s = EARLY * pulse.beat_s
        return not pulse.is_under_way and (line.is_cut or self._clock() >= pulse.due_s - early_s)

    def _report(self, line: Line, pulse: _Pulse, info: ReplicaInfo) -> asyncio.Task[None]:
        pulse.asked, pulse.due_s = info, NOW
        pulse.reporting = asyncio.create_task(self._beat(line, pulse, info), name="heartbeat")
        return pulse.reporting

    async def _beat(self, line: Line, pulse: _Pulse, info: ReplicaInfo) -> None:
        try:
            beat_s, trouble = await line.heartbeat(info), None
        except Exception as error:  # any error of Ray's
            beat_s, trouble = HEARTBEAT_S, error
            if pulse.trouble is None:
                log.warning("registry %d does not answer: %r", pulse.number, error)
        if info is pulse.asked:  # otherwise overtaken by a newer report
            pulse.beat_s, pulse.trouble = beat_s, trouble
            pulse.due_s = self._clock() + beat_s

    async def leave(self, epoch: Epoch) -> None:
        for pulse in self._pulses:
            pulse.asked = None  # a replica that stays, or has changed, reports at once
            if pulse.reporting is not None:
                pulse.reporting.cancel()  # or a slow registry would get it after the farewell
        await self._of_all(lambda line: line.leave(epoch), FAREWELL_S)

    async def report_starting(self, starting: StartingReplica) -> float:
        """Returns the seconds until the next progress report."""
        rests = await self._of_all(lambda line: line.report_starting(starting), STARTING_S)
        return min(rests.values())

    async def spare(self, epoch: Epoch, may_be_last: bool) -> str:
        """Raises Unavailable if too few registries answer."""
        answers = await self._of_all(lambda line: line.spare(epoch, may_be_last), SPARE_S)
        objection = next((why for why in answers.values() if why), "")
        num_all = len(self._lines)
        if not objection and 2 * len(answers) > num_all:
            return ""
        for number, why in answers.items():
            if not why:  # it counts the replica as leaving: report again
                self._pulses[number].due_s = NOW
        if objection:
            return objection
        raise Unavailable(
            f"only {len(answers)} of {num_all} registries answer, and more than half must; try "
            "again when Serve has restarted the others"
        )

    async def _of_all(self, ask: Callable[[Line], Awaitable[T]], patience_s: float) -> dict[int, T]:
        """The answers in time, by registry. Raises an error of one of them if there are none."""

        async def answer(line: Line) -> T:
            async with asyncio.timeout(patience_s):
                return await ask(line)

        answers: dict[int, T] = {}
        trouble: BaseException | None = None
        found = await asyncio.gather(*map(answer, self._lines), return_exceptions=True)
        for number, one in enumerate(found):
            if isinstance(one, BaseException):
                trouble = one
            else:
                answers[number] = one
        if not answers and trouble is not None:
            raise trouble
        return answers
