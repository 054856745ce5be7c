"""The thread that owns an engine and its pool; other threads reach them only through it.

    other threads -- call, post --> mailbox --+
                                              v
                 +--> run the mailbox, in order --> step --> on_step --+
                 +-----------------------------------------------------+
                                              ^       ^ between two layers
    other threads -- interject --> express ---+-------+

Interjected functions run in order among themselves, and before what waits in the mailbox.

Without work, or with work that only a command can start, the thread sleeps until a command comes.
An engine that has to keep pace with others joins their passes instead, and sleeps from tick to
tick; commands in between do not wait.

An exception in a step, in `on_step` or in a posted command is final: the pool cannot be trusted any
more, every call fails from then on, and the replica must be replaced.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TypeVar

from baton.core.errors import EngineFailed
from baton.engine.engine import Engine
from baton.engine.request.step_report import StepReport
from baton.engine.schedule.step_fit import StepFit
from baton.engine.step_hooks import ALONE, StepHooks

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Command:
    run: Callable[[], None]
    refuse: Callable[[EngineFailed], None]
    """Called instead of `run` if the thread has ended."""


class EngineThread:
    """A `baton.core.owner_thread.OwnerThread`. `on_step` and `on_failure` run on the thread."""

    def __init__(
        self,
        engine: Engine,
        on_step: Callable[[StepReport], None],
        *,
        on_failure: Callable[[BaseException], None] | None = None,
        before_commands: Callable[[], None] | None = None,
        hooks: StepHooks = ALONE,
    ) -> None:
        """`before_commands` runs on the thread, too: when something else than a step comes next.

        What is interjected runs `between_layers`, whatever `hooks` say of that.
        """
        self.engine = engine
        self.failure: BaseException | None = None
        self.last_progress = engine.clock()
        """When, on the engine's clock, a step last ran anything, or idleness ended."""
        self.step_fit = StepFit()
        """How long steps take."""
        self._stepped_at: float | None = None
        """End of the last step, if there has been work since."""
        self._on_step = on_step
        self._on_failure = on_failure
        self._before_commands = before_commands
        self._hooks = replace(hooks, between_layers=self._run_express)
        self._mailbox: deque[_Command] = deque()
        self._express: deque[_Command] = deque()
        self._changed = threading.Condition()
        self._loop_to_tell: asyncio.AbstractEventLoop | None = None
        self._is_idle = False
        self._next_pass_at = self.last_progress
        """Time from which others may wait for this engine, on its clock."""
        self._is_stopping = False
        self._has_ended = False
        self._thread = threading.Thread(target=self._main, name="baton-engine", daemon=True)

    def start(self) -> None:
        """Begin; inside a running event loop, which `tell` then means."""
        with suppress(RuntimeError):  # a thread without asyncio may own an engine, too
            self._loop_to_tell = asyncio.get_running_loop()
        self._thread.start()

    def stop(self, timeout_s: float) -> None:
        """Run the commands handed in so far, then end; unfinished requests are dropped.

        May be repeated. Raises EngineFailed if a step takes longer than `timeout_s`.
        """
        with self._changed:
            self._is_stopping = True
            self._changed.notify()
        if self._thread.ident is None:
            self._end()
            return
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise EngineFailed(f"the engine did not stop within {timeout_s:g} s")

    def call(self, function: Callable[[], T]) -> Awaitable[T]:
        """See `OwnerThread.call`; needs a running asyncio loop, and resolves on it."""
        return self._awaited(function, self._mailbox)

    def interject(self, function: Callable[[], T]) -> Awaitable[T]:
        """See `OwnerThread.interject`; needs a running asyncio loop, and resolves on it."""
        return self._awaited(function, self._express)

    def post(self, function: Callable[[], None]) -> None:
        """See `OwnerThread.post`. Dropped once the thread has ended: whoever takes over its pool
        checks the pool first."""
        self._hand_in(_Command(function, lambda refusal: None), self._mailbox)

    def tell(self, function: Callable[[], None]) -> None:
        """Run `function` on the event loop that started this thread: how hooks report.

        Dropped once the loop is closed: the process is going away.
        """
        if self._loop_to_tell is None:
            raise RuntimeError("the engine was started outside of an event loop")
        with suppress(RuntimeError):
            self._loop_to_tell.call_soon_threadsafe(function)

    def check_health(self, *, limit_s: float) -> None:
        """Raise EngineFailed if the thread has ended or no step has advanced for `limit_s`."""
        if not self.is_progressing(self.engine.clock(), limit_s):
            refusal = EngineFailed(f"the engine has died, or not advanced for {limit_s:g} s")
            raise refusal from self.failure

    def is_progressing(self, now: float, limit_s: float) -> bool:
        """Whether steps advance, `now` being on the engine's clock. Idle counts as progressing."""
        if self._has_ended:
            return False
        return self._is_idle or now - self.last_progress <= limit_s

    def _awaited(self, function: Callable[[], T], box: deque[_Command]) -> Awaitable[T]:
        future: Future[T] = Future()
        future.set_running_or_notify_cancel()  # cancelling who awaits must not cancel the command
        awaitable = asyncio.wrap_future(future)

        def run() -> None:
            try:
                result = function()
            except BaseException as error:
                future.set_exception(error)
            else:
                future.set_result(result)

        self._hand_in(_Command(run, future.set_exception), box)
        return awaitable

    def _hand_in(self, command: _Command, box: deque[_Command]) -> None:
        with self._changed:
            if not self._has_ended:
                box.append(command)
                self._changed.notify()
                return
        command.refuse(self._refusal())

    def _refusal(self) -> EngineFailed:
        refusal = EngineFailed(f"the engine has {'failed' if self.failure else 'stopped'}")
        refusal.__cause__ = self.failure
        return refusal

    def _main(self) -> None:
        try:
            self._loop()
        except BaseException as error:
            self.failure = error
        try:
            # First: whose command is refused must not take the engine for a living one.
            if self.failure is not None and self._on_failure is not None:
                self._on_failure(self.failure)
        finally:
            self._end()

    def _loop(self) -> None:
        needs_command = True
        while True:
            with self._changed:
                has_come = not needs_command or self._sleep()
                num_commands, is_stopping = len(self._mailbox), self._is_stopping
            if not has_come:
                needs_command = not self._keep_pace()
                continue
            if (num_commands or is_stopping) and self._before_commands is not None:
                self._before_commands()
            self._run_express()
            for _ in range(num_commands):  # later ones wait, or they could keep steps from running
                self._mailbox.popleft().run()
            if is_stopping:
                return
            needs_command = self._step()

    def _run_express(self) -> None:
        if self._express:  # asked after every layer: no lock, no call
            for _ in range(len(self._express)):
                self._express.popleft().run()

    def _sleep(self) -> bool:
        """Whether a command has come; else it is time to join a pass."""
        self._is_idle, self._stepped_at = not self.engine.has_work, None
        lockstep = self.engine.lockstep
        has_come = self._changed.wait_for(
            lambda: bool(self._mailbox or self._express or self._is_stopping),
            timeout=None
            if lockstep is None
            else max(0.0, self._next_pass_at - self.engine.clock()),
        )
        if self._is_idle:
            self.last_progress = self.engine.clock()
        self._is_idle = False
        return has_come

    def _step(self) -> bool:
        """Run a step if there is work. Whether only a command can bring more of it."""
        if self.engine.has_work:
            began_at = self.engine.clock() if self._stepped_at is None else self._stepped_at
            report = self.engine.step(self._hooks)
            if not report.is_stalled:
                now = self.last_progress = self._next_pass_at = self.engine.clock()
                self._stepped_at = now if self.engine.has_work else None
                if report.num_tokens:
                    self.step_fit.add(report.work, now - began_at, now)
            self._on_step(report)
            if not report.is_stalled:
                return False
        return self.engine.clock() < self._next_pass_at or not self._keep_pace()

    def _keep_pace(self) -> bool:
        """Whether others computed something, and may at once again."""
        lockstep = self.engine.lockstep
        if lockstep is None:
            return False
        has_joined = lockstep.join_pass()
        self._next_pass_at = self.engine.clock() + (0.0 if has_joined else lockstep.tick_s)
        if not self.engine.has_work:
            self.last_progress, self._stepped_at = self.engine.clock(), None
        return has_joined

    def _end(self) -> None:
        with self._changed:
            self._has_ended = True
        for box in (self._express, self._mailbox):
            while box:
                box.popleft().refuse(self._refusal())
