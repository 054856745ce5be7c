"""A pytest plugin under which connections, threads and engine steps are late at random, as on a
machine that is ten times slower. A test that fails only here depends on time.

    .venv/bin/python -m pytest -n 3 -p tests.slow_machine tests/gateway

A busy machine may do all of this as well: the events of one connection keep their order, and none
is lost.
"""

from __future__ import annotations

import asyncio
import os
import random
import time
from asyncio import selector_events
from collections.abc import Callable
from typing import Any

import pytest

SHARE = 0.5
"""Share of events that are late."""
MOST_S = 0.04
"""Seconds by which one is late at most."""
STEP_SHARE = 0.1
"""Share of an engine's steps that are late."""

_random = random.Random(os.getpid())


class LateEvents:
    """The events of one process's event loops. A loop is told of an event again until it is taken,
    so one that is left out is only late."""

    def __init__(self) -> None:
        self._due_at: dict[tuple[int, int], float] = {}
        """Times before which a connection's events are left out, by event loop and connection."""

    def due(self, loop: Any, events: list[Any]) -> list[Any]:
        now = time.monotonic()
        return [event for event in events if self._is_due(loop, event[0].fd, now)]

    def _is_due(self, loop: Any, fd: int, now: float) -> bool:
        if fd == loop._ssock.fileno():  # other threads' calls
            return True
        key = id(loop), fd
        if key not in self._due_at:
            self._due_at[key] = now + (_random.random() < SHARE) * _random.random() * MOST_S
        if now < self._due_at[key]:
            return False
        del self._due_at[key]
        return True


def _make_events_late() -> None:
    late, process = LateEvents(), selector_events.BaseSelectorEventLoop._process_events  # type: ignore[attr-defined]

    def process_late(loop: Any, events: list[Any]) -> None:
        due = late.due(loop, events)
        if events and not due:
            time.sleep(0.0005)  # or the loop would spin
        process(loop, due)

    selector_events.BaseSelectorEventLoop._process_events = process_late  # type: ignore[attr-defined]


def _make_threads_late() -> None:
    to_thread = asyncio.to_thread

    async def to_thread_late(function: Callable[..., Any], /, *args: Any, **options: Any) -> Any:
        await asyncio.sleep((_random.random() < SHARE) * _random.random() * MOST_S)
        return await to_thread(function, *args, **options)

    asyncio.to_thread = to_thread_late


def _make_steps_late() -> None:
    from baton.engine.engine import Engine  # torch, which a run of few tests may do without

    step = Engine.step

    def step_late(engine: Engine, *args: Any, **options: Any) -> Any:
        time.sleep((_random.random() < STEP_SHARE) * _random.random() * MOST_S)
        return step(engine, *args, **options)

    Engine.step = step_late  # type: ignore[method-assign, assignment]


def pytest_configure(config: pytest.Config) -> None:
    _make_events_late()
    _make_threads_late()


def pytest_collection_finish(session: pytest.Session) -> None:
    _make_steps_late()
