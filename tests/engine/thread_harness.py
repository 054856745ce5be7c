"""An engine of echoes on its thread, and what it has reported."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

from baton.core.clock import ManualClock
from baton.core.sampling import SamplingParams
from baton.engine.config import CacheConfig, EngineConfig
from baton.engine.engine import Engine
from baton.engine.engine_thread import EngineThread
from baton.engine.passes.echo import EchoRunner, echo_info
from baton.engine.request.request import Request
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks


class Harness:
    """An engine thread whose steps are handed to the test's own event loop."""

    def __init__(
        self,
        *,
        num_blocks: int = 64,
        num_layers: int = 1,
        clock: ManualClock | None = None,
        hooks: StepHooks = ALONE,
    ) -> None:
        loop = asyncio.get_running_loop()
        self.reports: asyncio.Queue[StepReport] = asyncio.Queue()
        self.failures: list[BaseException] = []
        self.failed = asyncio.Event()
        config = EngineConfig(cache=CacheConfig(block_size=4))
        info = echo_info(num_layers=num_layers)
        runner = EchoRunner(info, num_blocks=num_blocks, block_size=4)
        self.engine = Engine(runner, config, clock=clock or ManualClock())

        def fail(error: BaseException) -> None:
            self.failures.append(error)
            loop.call_soon_threadsafe(self.failed.set)

        def report(step: StepReport) -> None:
            loop.call_soon_threadsafe(self.reports.put_nowait, step)

        self.before_commands: Callable[[], None] = lambda: None
        self.thread = EngineThread(
            self.engine,
            report,
            on_failure=fail,
            before_commands=lambda: self.before_commands(),
            hooks=hooks,
        )

    async def __aenter__(self) -> Harness:
        self.thread.start()
        return self

    async def __aexit__(self, *error: object) -> None:
        await asyncio.to_thread(self.thread.stop, 30)

    async def finished(self, request: Request) -> None:
        while True:
            report = await self.reports.get()
            if any(o.request is request and o.is_finished for o in report.outputs):
                return


def make_request(name: str = "r", *, max_tokens: int = 8) -> Request:
    return Request(name, range(11), sampling=SamplingParams(temperature=0.0, max_tokens=max_tokens))


def fail_with(error: BaseException) -> Callable[[], None]:
    def function() -> None:
        raise error

    return function


def wait_for(gate: threading.Event) -> Callable[[], None]:
    """A command that keeps the engine's thread busy until the test says otherwise."""

    def function() -> None:
        gate.wait(30)

    return function
