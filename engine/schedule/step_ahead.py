"""Decode passes that are launched before the previous one is read (async scheduling): the device
computes while the host distributes tokens, sends them and accepts new requests.

    host     launch 0, 1 | wait 0, give out 0 | launch 2 | wait 1, give out 1 | launch 3 | ...
    device      0          1                             2                             3
    step     |------------ reads 0 -----------|------- reads 1 ---------------|------- ...

A step reads one pass, as without this, and returns the same tokens. The pass that it launches in
addition is the next step's: the next turn of the same persistent batch, whose tokens go from
sampling to the pass on the device. It is launched only if nothing that the host knows speaks
against the turn (`Scheduler.go_ahead`). What the host learns later ends the batch, and requests
that have left have nothing of the turn in flight. Other ranks are told of it without waiting for
the tokens, which go to them from device to device; their part of a pass is over once the lead's is,
as its last sums are of all of them.

**Who owns the blocks.** A pass in flight writes one slot for each of its requests: the one after
its computed tokens, in a block that this request alone holds and that has no name. So nothing is
written into a block that is named, shared or another request's, as long as no request in flight
gives up its references. Code that lets references go calls `land` first: then the device is done
with them, and the sampled tokens are kept for their step. The scheduler, which preempts, runs only
while nothing is in flight. Tokens count as computed, and blocks are named, when their pass is read.

It is off for rows whose sampling needs what only the host knows: grammars and other rules,
typical-p, logprobs (`SamplingPlan.needs_host`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from baton.engine.batch.batch import ignore_layer
from baton.engine.passes.runner import ModelRunner, Runner
from baton.engine.ranks.lead import LeadRunner
from baton.engine.request.request import Phase, Request
from baton.engine.sampling.sampler import draw
from baton.engine.schedule.persistent_batch import PersistentBatch
from baton.engine.schedule.scheduler import Scheduler


class Readback:
    """What the device found, on its way to the host while both go on.

    On a GPU an asynchronous copy to pinned memory; what is on the host is there already.
    """

    def __init__(self, values: Tensor) -> None:
        """`values` are nobody else's to write."""
        self._host = values.to("cpu", non_blocking=values.is_cuda)
        self._arrived: torch.cuda.Event | None = None
        if values.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(values.device))

    def wait(self) -> list[list[int]]:
        """All that the device had been told to do by then is done, too."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[list[int]] = self._host.tolist()
        return values


def goes_ahead(choice: Literal["auto", "on", "off"], runner: Runner) -> bool:
    """What `scheduler.step_ahead` means here. A pass on a CPU is over when it was launched."""
    if choice == "auto":
        own = runner.own if isinstance(runner, LeadRunner) else runner
        return isinstance(own, ModelRunner) and own.graphs is not None
    return choice == "on"


class NextToken(NamedTuple):
    request: Request
    token: int
    is_finite: bool
    """Whether all logits were; if not, the token means nothing."""


@dataclass(eq=False)
class _Flight:
    """One turn, launched."""

    persistent_batch: PersistentBatch
    turn: int
    tokens: Tensor  # [R] int64, on the device
    readback: Readback

    @cached_property
    def found(self) -> list[list[int]]:
        """Tokens, and whether they are finite. Waits for the device, once."""
        return self.readback.wait()

    @property
    def is_for_somebody(self) -> bool:
        return any(request.phase is Phase.RUNNING for request in self.persistent_batch.requests)


class StepAhead:
    """What was launched and not read: one pass between two steps, or none."""

    def __init__(
        self, scheduler: Scheduler, eos_token_ids: Collection[int], *, is_on: bool
    ) -> None:
        self._scheduler = scheduler
        self._eos_token_ids = eos_token_ids
        self._is_on = is_on
        self._flights: deque[_Flight] = deque()
        self.read_back: Callable[[Tensor], Readback] = Readback
        """How what was found comes to the host."""

    @property
    def persistent_batch(self) -> PersistentBatch | None:
        """The persistent batch whose turn the next step is, if it was launched already."""
        return self._flights[0].persistent_batch if self._flights else None

    def takes(self, batch: PersistentBatch, runner: Runner) -> bool:
        return self._is_on and not batch.plan(runner.cache.device).needs_host

    def launch(self, batch: PersistentBatch, runner: Runner, *, goes_on: bool) -> None:
        """This step's turn, unless it is in flight; and the one behind it, if that is sure, and
        `goes_on`."""
        if not self._flights:
            self._flights.append(self._begin(batch, runner))
        last = self._flights[-1]
        if goes_on and last.turn == batch.decoding.turn and self._scheduler.go_ahead(last.tokens):
            self._flights.append(self._begin(batch, runner))

    def read(self) -> list[NextToken]:
        """What this step's turn gave those who are still there."""
        flight = self._flights[0]
        tokens, are_finite = flight.found
        self._flights.popleft()
        rows = zip(flight.persistent_batch.requests, tokens, are_finite, strict=True)
        return [
            NextToken(request, token, bool(is_finite))
            for request, token, is_finite in rows
            if request.phase is Phase.RUNNING
        ]

    def land(self) -> None:
        """Wait until the device writes nowhere any more. What it drew is kept for its step."""
        for flight in self._flights:
            _ = flight.found

    def forget_who_left(self) -> None:
        """A turn whose requests are all gone is nobody's."""
        while self._flights and not self._flights[0].is_for_somebody:
            self._flights.popleft()

    @torch.inference_mode()
    def _begin(self, batch: PersistentBatch, runner: Runner) -> _Flight:
        hidden = runner.forward(batch.decoding, ignore_layer)
        plan = batch.plan(runner.cache.device)
        tokens, are_finite = draw(runner.logits(hidden), plan, self._eos_token_ids)
        found = torch.stack((tokens, are_finite.to(tokens.dtype)))
        return _Flight(batch, batch.decoding.turn, tokens, self.read_back(found))
