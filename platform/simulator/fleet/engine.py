"""The engine's scheduler and block pool without a model; steps take the modelled time.

    call(command) --> mailbox --> between two steps, in order
    schedule -> computed, committed, one token each -> on_step -> mailbox -> schedule ...

As on the engine's thread, whatever is asked for during a step waits for its end, and the next
step begins at once while there is work.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from random import Random
from typing import NamedTuple, NoReturn

from baton.core.kv_layout import KvLayout
from baton.core.step_times import StepWork
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.blocks.kv_event_log import KvEventLog
from baton.engine.request.request import Phase, Request, ending_of
from baton.engine.schedule.drafted_chunks import ScheduledChunk
from baton.engine.schedule.persistent_batch import PersistentBatch
from baton.engine.schedule.scheduler import Reclaim, Scheduler
from baton.engine.schedule.step_fit import work_of
from baton.platform.simulator.fleet.event_queue import EventQueue
from baton.platform.simulator.fleet.setup import Device

MEDIAN_OF_NORMAL = 0.6745
"""Half of normally distributed values are nearer to their mean than so many deviations."""


class Step(NamedTuple):
    chunks: Sequence[ScheduledChunk]
    persistent_batch: PersistentBatch | None
    work: StepWork
    began_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineHooks:
    """Callbacks of the role that runs the engine."""

    draw: Callable[[Request], int]
    """The next token of a request."""
    on_step: Callable[[Step, Sequence[Request]], None]
    """Called after each step, with the requests that got a token."""
    reclaim: Reclaim = lambda tenant: False
    on_scheduled: Callable[[Request], None] = lambda request: None
    before_commands: Callable[[], None] = lambda: None
    """Called before commands are run."""


class SimulatedEngine:
    def __init__(
        self, device: Device, event_queue: EventQueue, hooks: EngineHooks, noise: Random | None
    ) -> None:
        self.device = device
        self.pool = BlockPool(_NoBytes(device), clock=event_queue)
        self.events = KvEventLog()
        self.pool.record_in(self.events)
        self.busy_s = 0.0
        self.last_work = StepWork()
        self._event_queue = event_queue
        self._hooks = hooks
        self._noise = noise
        self._deviation = device.step_times.spread / MEDIAN_OF_NORMAL
        self._scheduler = Scheduler(self.pool, device.scheduler)
        self._mailbox: deque[Callable[[], None]] = deque()
        self._is_awake = False
        """Whether a step runs or is about to be planned."""

    @property
    def num_running(self) -> int:
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        return self._scheduler.num_waiting

    @property
    def num_preempted(self) -> int:
        return self._scheduler.num_preempted

    @property
    def is_starving(self) -> bool:
        return self._scheduler.is_starving

    @property
    def num_queued_tokens(self) -> int:
        return sum(request.num_pending for request in self._scheduler)

    def call(self, command: Callable[[], None]) -> None:
        """Run a command between two steps."""
        self._mailbox.append(command)
        if not self._is_awake:
            self._go_on()

    # Between two steps.

    def add(self, request: Request) -> None:
        """Queue it; one with computed tokens holds their blocks already."""
        limit = self.pool.num_blocks * self.device.block_size
        request.ending = ending_of(request, eos_token_ids=(), max_model_len=limit)
        self._scheduler.add(request)

    def finish(self, request: Request) -> None:
        """Drop it, wherever it is, with its blocks. Safe to repeat."""
        if request.phase is not Phase.FINISHED:
            self._scheduler.finish(request)

    def _go_on(self) -> None:
        self._is_awake = True
        if self._mailbox:
            self._hooks.before_commands()
        while self._mailbox:
            self._mailbox.popleft()()
        chunks, batch = self._planned()
        if chunks:
            self._begin(Step(chunks, batch, work_of(chunks, batch), self._event_queue.now))
        else:
            self._is_awake = False

    def _planned(self) -> tuple[Sequence[ScheduledChunk], PersistentBatch | None]:
        chunks = self._scheduler.step(self._hooks.reclaim)
        if self._scheduler.persistent_batch is not None:
            return chunks, self._scheduler.persistent_batch
        for request in [chunk.request for chunk in chunks if chunk.request.scheduled_at is None]:
            request.scheduled_at = self._event_queue.now
            self._hooks.on_scheduled(request)
        return chunks, None

    def _begin(self, step: Step) -> None:
        seconds = self.device.step_times.predict_s(step.work)
        if self._noise is not None:
            seconds *= math.exp(self._noise.gauss(0.0, self._deviation))
        self.busy_s += seconds
        self.last_work = step.work
        self._event_queue.after(seconds, lambda: self._end(step))

    def _end(self, step: Step) -> None:
        if step.persistent_batch is not None:
            step.persistent_batch.computed()
            sampled: Sequence[Request] = step.persistent_batch.requests
        else:
            sampled = self._computed(step.chunks)
        draw = self._hooks.draw
        for request in sampled:
            request.append(draw(request))
        self._hooks.on_step(step, sampled)
        self._go_on()

    def _computed(self, chunks: Sequence[ScheduledChunk]) -> Sequence[Request]:
        for request, num_tokens, _ in chunks:
            request.num_computed += num_tokens
            request.num_run += num_tokens
            self.pool.commit(request.holder, request.tokens, request.num_computed, request.salt)
        return [chunk.request for chunk in chunks if chunk.request.awaits_token]


class _NoBytes:
    """The blocks have no memory; any access is an error in a simulation."""

    is_in_memory = False
    head_runs = ()
    device_rows = None

    def __init__(self, device: Device) -> None:
        self.num_blocks = device.num_blocks
        self.layout: KvLayout = device.layout

    def _none(self, *_: object) -> NoReturn:
        raise AssertionError("simulated blocks have no bytes")

    view = views = write = clear = clear_tail = writable = writables = write_part = _none
    scratch = write_blocks = _none
