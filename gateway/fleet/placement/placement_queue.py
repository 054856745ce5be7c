"""Requests that need replicas: placed at once, or in line for a prefill replica.

    enter --> placed                                   or not admitted: no decode replica has room
          '-> in line --serve--> placed                whenever something has changed
                       '-stranded-> enter again        its prefill replica left or does not answer

The admission queue (`admission.py`) decides which request enters next; the placer decides where and
when each request in line goes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import inf

from baton.core.clock import Clock
from baton.core.ids import Epoch, RequestId
from baton.core.messages import GenerateRequest
from baton.gateway.fleet.fleet import Fleet
from baton.gateway.fleet.placement.decision_log import DecisionLog, PlacementRecord
from baton.gateway.fleet.placement.placed import Placed
from baton.router.cache.prompt_names import PromptNames, names_of
from baton.router.placement import Placement, placement_request
from baton.router.placer import NOTHING, Placer
from baton.router.prompt import Prompt


@dataclass(slots=True, eq=False)
class PlacementAttempt:
    """One attempt of a request that has no place yet."""

    next_request: Callable[[], GenerateRequest]
    """Builds the request for each try of a place; its errors are raised to the caller."""
    names: PromptNames
    """Block hashes of the prompt, without output."""
    on_placed: Callable[[Placed], None]
    """Called synchronously as soon as the attempt is opened."""
    lost: frozenset[Epoch]
    near: RequestId | None
    asked: PlacementRecord
    session: str = ""
    was_asked: bool = False
    """Whether it was found to need a prefill replica while that line was full."""
    entered_s: float | None = None
    """When it first entered: a request that is placed anew keeps its turn."""
    prompt: Prompt | None = None
    """The prompt, while it stands in line."""
    placed: asyncio.Future[Placed] = field(
        default_factory=lambda: asyncio.get_running_loop().create_future()
    )


class PlacementQueue:
    def __init__(self, fleet: Fleet, placer: Placer, log: DecisionLog, clock: Clock) -> None:
        self._fleet = fleet
        self._placer = placer
        self._log = log
        self._clock = clock
        self._in_line: dict[int, PlacementAttempt] = {}
        """Attempts in line, by the prompt's number."""
        self._stranded: list[PlacementAttempt] = []
        self.has_line = asyncio.Event()
        """Set when a request joins the line; cleared when the line is found empty."""

    def __len__(self) -> int:
        """Requests that have entered and have no place yet."""
        return len(self._in_line) + len(self._stranded)

    @property
    def num_tokens(self) -> int:
        """Prompt tokens of the attempts in line."""
        return self._placer.num_line_tokens

    @property
    def lets_pass(self) -> bool:
        """Whether a request that needs no prefill replica may pass requests that wait for the full
        line: true while there is room to decode."""
        view = self._fleet.view(NOTHING)
        return view.decode.pool.num_open > 0 and not self._placer.has_space(view)

    def enter(self, attempt: PlacementAttempt, *, may_wait: bool = True) -> bool:
        """Place the attempt, or put it in line; False if it has to wait outside. An attempt that
        needs no prefill replica needs no space in line.
        """
        view = self._fleet.view(NOTHING)
        may_wait = may_wait and self._placer.has_space(view)
        if not view.decode.pool.num_open or (attempt.was_asked and not may_wait):
            return False  # the common case: avoid looking up a long prompt for nothing
        attempt.was_asked |= not may_wait
        request = attempt.next_request()
        known = request.prompt + request.output
        names = names_of(request, attempt.names)
        near = self._fleet.loads.where_runs(attempt.near)
        now = self._clock()
        entered_s = now if attempt.entered_s is None else attempt.entered_s
        asked = replace(
            placement_request(request, known, lost=attempt.lost, near=near),
            arrived_s=entered_s,
            session=attempt.session,
            due_s=inf if request.output else attempt.asked.kept.due_s,
            itl_s=attempt.asked.kept.slo.allowed_itl_s,
        )
        view = self._fleet.view(names)
        found = self._placer.place(asked, names, view, now, may_wait=may_wait)
        if found is not None:
            attempt.entered_s = entered_s
        match found:
            case None:
                return False
            case Placement():
                self._send(attempt, found, request, names)
            case Prompt():
                attempt.prompt = found
                self._in_line[found.number] = attempt
                self.has_line.set()
        return True

    def serve(self) -> None:
        """Place the attempts whose turn has come. Called after any change."""
        if not len(self):
            return
        self._rescue()
        for prompt, placement in self._placer.served(self._fleet.view, self._clock()):
            attempt = self._in_line.pop(prompt.number)
            attempt.prompt = None
            self._try_send(attempt, placement)

    def leave(self, attempt: PlacementAttempt) -> None:
        """Take the attempt out; a place that it has got meanwhile is given back."""
        if attempt.prompt is not None:
            self._placer.leave(attempt.prompt)
            self._in_line.pop(attempt.prompt.number, None)
        if attempt in self._stranded:
            self._stranded.remove(attempt)
        placed = attempt.placed
        if placed.done() and not placed.cancelled() and placed.exception() is None:
            placed.result().close(0)

    def _rescue(self) -> None:
        view = self._fleet.view(NOTHING)
        for prompt in self._placer.stranded(view, self._clock()):
            attempt = self._in_line.pop(prompt.number)
            attempt.prompt = None
            self._stranded.append(attempt)
        stranded, self._stranded = self._stranded, []
        for attempt in stranded:
            try:
                if not self.enter(attempt):
                    self._stranded.append(attempt)
            except Exception as error:
                _fail(attempt, error)

    def _try_send(self, attempt: PlacementAttempt, placement: Placement) -> None:
        try:
            request = attempt.next_request()
            self._send(attempt, placement, request, names_of(request, attempt.names))
        except Exception as error:
            _fail(attempt, error)

    def _send(
        self,
        attempt: PlacementAttempt,
        placement: Placement,
        request: GenerateRequest,
        names: PromptNames,
    ) -> None:
        placed = Placed(self._fleet, placement, request, names)
        try:
            placed.follow(self._log.sent(attempt.asked, request, placement))
            attempt.on_placed(placed)
        except BaseException:
            placed.close(0)
            raise
        if attempt.placed.done():  # its caller was cancelled
            placed.close(0)
        else:
            attempt.placed.set_result(placed)


def _fail(attempt: PlacementAttempt, error: Exception) -> None:
    if not attempt.placed.done():
        attempt.placed.set_exception(error)
