"""Async scheduling: a decode pass is launched before the host has read the previous one, so the
device computes while the host distributes tokens, sends them and accepts new requests.

    host     launch 0, 1 | wait 0, give out 0 | launch 2 | wait 1, give out 1 | launch 3 | ...
    device      0          1                             2                             3
    step     |------------ reads 0 -----------|------- reads 1 ---------------|------- ...

Each step reads one pass and returns the same tokens as without async scheduling. In addition it
launches the pass of the next step: the next turn of the same persistent batch, whose input tokens
go from sampling to the pass on the device. It is launched only if nothing that the host knows
speaks against the turn (`Scheduler.begin_next_turn`). If a request finishes or is cancelled later,
the batch ends, and the token that the turn in flight computes for it is discarded. Other ranks
launch the turn without waiting for the tokens, which reach them from device to device. Their part
of a pass is over once the lead's is, because its last all-reduce involves all ranks.

**Who owns the blocks.** A pass in flight writes one slot for each of its requests: the one after
its computed tokens, in a block that only this request holds and that has no name yet. So nothing is
written into a block that is named, shared or another request's, as long as no request in flight
releases its blocks. Code that releases blocks calls `synchronize` first: after that the device no
longer writes to them, and the sampled tokens are kept for the step that reads them. The scheduler,
which preempts, runs only while nothing is in flight. Tokens count as computed, and blocks get their
names, when their pass is read.

Async scheduling is off for batches whose sampling needs the host: grammars and other output rules,
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
    """Results of a pass that are being copied to the host while both host and device go on.

    On a GPU this is an asynchronous copy into pinned memory; on a CPU there is nothing to wait for.
    """

    def __init__(self, values: Tensor) -> None:
        """`values` must not be written by anyone afterwards: the copy may still read them."""
        self._host = values.to("cpu", non_blocking=values.is_cuda)
        self._arrived: torch.cuda.Event | None = None
        if values.is_cuda:
            self._arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._arrived.record(torch.cuda.current_stream(values.device))

    def wait(self) -> list[list[int]]:
        """Wait for the copy and return the values. All work enqueued on the stream before the copy
        is done then, too."""
        if self._arrived is not None:
            self._arrived.synchronize()
        values: list[list[int]] = self._host.tolist()
        return values


def is_async(choice: Literal["auto", "on", "off"], runner: Runner) -> bool:
    """Whether `scheduler.async_scheduling` = `choice` is on for this runner. `auto` is on with CUDA
    graphs only: a pass on a CPU is synchronous, so there is nothing to overlap."""
    if choice == "auto":
        own = runner.own if isinstance(runner, LeadRunner) else runner
        return isinstance(own, ModelRunner) and own.graphs is not None
    return choice == "on"


class NextToken(NamedTuple):
    request: Request
    token: int
    is_finite: bool
    """Whether all logits of the row were finite; if not, `token` is meaningless."""


@dataclass(eq=False)
class _PassInFlight:
    """One turn that was launched and not read yet."""

    persistent_batch: PersistentBatch
    turn: int
    tokens: Tensor  # [R] int64, on the device
    readback: Readback

    @cached_property
    def found(self) -> list[list[int]]:
        """[2, R] the sampled tokens, and 1 for each row whose logits are finite. The first access
        waits for the device."""
        return self.readback.wait()

    @property
    def has_running(self) -> bool:
        return any(request.phase is Phase.RUNNING for request in self.persistent_batch.requests)


class PassesInFlight:
    """The turns that were launched and not read yet: between two steps, at most one."""

    def __init__(
        self, scheduler: Scheduler, eos_token_ids: Collection[int], *, is_on: bool
    ) -> None:
        self._scheduler = scheduler
        self._eos_token_ids = eos_token_ids
        self._is_on = is_on
        self._passes: deque[_PassInFlight] = deque()
        self.read_back: Callable[[Tensor], Readback] = Readback
        """Starts the copy of a pass's results [2, R] to the host."""

    @property
    def persistent_batch(self) -> PersistentBatch | None:
        """The persistent batch whose turn in flight the next step will read; None if none is."""
        return self._passes[0].persistent_batch if self._passes else None

    def takes(self, batch: PersistentBatch, runner: Runner) -> bool:
        """Whether turns of `batch` may be launched ahead."""
        return self._is_on and not batch.plan(runner.cache.device).needs_host

    def launch(self, batch: PersistentBatch, runner: Runner, *, launch_next: bool) -> None:
        """Launch this step's turn unless it is in flight already; then the turn after it, if
        `launch_next` and the scheduler is sure that the batch stays the same."""
        if not self._passes:
            self._passes.append(self._begin(batch, runner))
        last = self._passes[-1]
        if (
            launch_next
            and last.turn == batch.decoding.turn
            and self._scheduler.begin_next_turn(last.tokens)
        ):
            self._passes.append(self._begin(batch, runner))

    def read(self) -> list[NextToken]:
        """Wait for this step's turn and return its tokens, without those of requests that have
        left."""
        oldest = self._passes[0]
        tokens, are_finite = oldest.found
        self._passes.popleft()
        rows = zip(oldest.persistent_batch.requests, tokens, are_finite, strict=True)
        return [
            NextToken(request, token, bool(is_finite))
            for request, token, is_finite in rows
            if request.phase is Phase.RUNNING
        ]

    def synchronize(self) -> None:
        """Wait until the device has finished all turns in flight and writes to no block any more.
        The sampled tokens are kept for the step that reads them."""
        for launched in self._passes:
            _ = launched.found

    def drop_abandoned(self) -> None:
        """Drop turns in flight whose requests have all left."""
        while self._passes and not self._passes[0].has_running:
            self._passes.popleft()

    @torch.inference_mode()
    def _begin(self, batch: PersistentBatch, runner: Runner) -> _PassInFlight:
        hidden = runner.forward(batch.decoding, ignore_layer)
        plan = batch.plan(runner.cache.device)
        tokens, are_finite = draw(runner.logits(hidden), plan, self._eos_token_ids)
        found = torch.stack((tokens, are_finite.to(tokens.dtype)))
        return _PassInFlight(batch, batch.decoding.turn, tokens, self.read_back(found))
