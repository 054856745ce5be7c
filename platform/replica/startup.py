"""Reports a replica's start to the registry: its stage, or why it failed.

    importing -> preparing kernels -> loading weights -> starting    then its heartbeat speaks
                                                         \\-> failed: why
    taking the role of decode ->                            a replica that flips

Imports little, since it is used before torch is imported.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from types import TracebackType
from typing import Protocol, Self

from baton.core.errors import CheckpointError, InvalidConfig, ModelUnreachable
from baton.core.replicas import StartingReplica

log = logging.getLogger(__name__)

IMPORTING = "importing"
"""The first stage of a new process."""
RETRY_S = 0.5
REPORT_TIMEOUT_S = 5.0
BEYOND_RETRY = (CheckpointError, InvalidConfig)
"""Errors that a restart would meet again."""


class StartupRegistry(Protocol):
    async def report_starting(self, starting: StartingReplica) -> float:
        """Returns the seconds until it is to say how much further it is."""


class Startup:
    """Entered when a replica begins, left when it serves."""

    def __init__(self, registry: StartupRegistry, starting: StartingReplica) -> None:
        """`starting`: the first stage."""
        self._registry = registry
        self._state = starting
        self._news = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None

    def enter(self, stage: str) -> None:
        self._state = self._state.at(stage)
        log.info("%s", stage)
        self._news.set()

    def advance(self, fraction: float) -> None:
        """Report the done fraction of this stage. Thread-safe."""
        self._state = self._state.at(self._state.stage, fraction)

    async def __aenter__(self) -> Self:
        log.info("%s", self._state.stage)
        self._reporting = asyncio.create_task(self._keep_reporting())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._reporting is not None:
            self._reporting.cancel()
        if isinstance(error, Exception):
            is_final = isinstance(error, BEYOND_RETRY) and not isinstance(error, ModelUnreachable)
            failed = self._state.failed(_cause(error), is_final=is_final)
            is_reported = await self._report(failed) is not None
            level = (
                logging.INFO if is_reported else logging.ERROR
            )  # a report is shown to the operator
            log.log(level, "failed while %s: %s", failed.stage, failed.failure)

    async def _keep_reporting(self) -> None:
        while True:
            self._news.clear()
            rest_s = await self._report(self._state)
            with suppress(TimeoutError):  # `wait_for` can lose a cancellation
                async with asyncio.timeout(RETRY_S if rest_s is None else rest_s):
                    await self._news.wait()

    async def _report(self, state: StartingReplica) -> float | None:
        """Send a report; None if that failed."""
        try:
            async with asyncio.timeout(REPORT_TIMEOUT_S):
                return await self._registry.report_starting(state)
        except Exception as error:  # whatever Ray raises; the registry may still start itself
            log.info("the progress of the start cannot be reported to the registry: %r", error)
            return None


def _cause(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if isinstance(error, BEYOND_RETRY) else f"{type(error).__name__}: {text}"
