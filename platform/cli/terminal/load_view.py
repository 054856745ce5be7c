"""Shows a running load on standard error: redrawn on a terminal, else a line every few seconds."""

from __future__ import annotations

import asyncio
from collections import Counter, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import numpy as np
from rich.console import Console
from rich.live import Live
from rich.text import Text

from baton.platform.load_generator.generator import Record
from baton.platform.load_generator.outcome import Ending, Outcome

REDRAW_S = 0.25
LINE_S = 5.0
WINDOW_S = 10.0
"""Seconds of history in the shown latencies and rates."""


@asynccontextmanager
async def shown(record: Record, num_requests: int | None) -> AsyncIterator[None]:
    console = Console(stderr=True, highlight=False)
    view = _View(record, num_requests)
    task = asyncio.create_task(
        _redraw(view, console) if console.is_terminal else _print(view, console)
    )
    try:
        yield
    finally:
        task.cancel()
        with suppress(asyncio.CancelledError):
            await task


async def _redraw(view: _View, console: Console) -> None:
    with Live(view.text(), console=console, transient=True, auto_refresh=False) as live:
        while True:
            await asyncio.sleep(REDRAW_S)
            live.update(view.text(), refresh=True)


async def _print(view: _View, console: Console) -> None:
    while True:
        await asyncio.sleep(LINE_S)
        console.print(view.text(), soft_wrap=True)


class _View:
    def __init__(self, record: Record, num_requests: int | None) -> None:
        self._record = record
        self._num_requests = num_requests
        self._num_read = 0
        self._recent: deque[Outcome] = deque()
        self._endings: Counter[Ending] = Counter()

    def text(self) -> Text:
        record, now = self._record, self._record.now()
        self._read(now)
        of = "" if self._num_requests is None else f" of {self._num_requests}"
        said = [
            f"{now:6.1f} s",
            f"{record.num_sent}{of} sent",
            f"{record.num_in_flight} in flight",
            f"{self._endings[Ending.COMPLETED]} completed",
            *(
                f"{num} {ending}"
                for ending, num in self._endings.items()
                if ending is not Ending.COMPLETED
            ),
        ]
        complete = [outcome for outcome in self._recent if outcome.is_complete]
        if complete:
            window_s = min(now, WINDOW_S)
            p50, p99 = np.percentile([outcome.ttft_s for outcome in complete], (50, 99)) * 1e3
            rate = sum(outcome.output_tokens for outcome in complete) / window_s
            said.append(f"TTFT p50 {p50:,.0f} ms, p99 {p99:,.0f} ms")
            said.append(f"{len(complete) / window_s:.1f} requests/s, {rate:,.0f} tokens/s")
        return Text(" | ".join(said))

    def _read(self, now: float) -> None:
        """Take in the requests that ended since the last call."""
        new = self._record.outcomes[self._num_read :]
        self._num_read += len(new)
        self._endings.update(outcome.ending for outcome in new)
        self._recent.extend(new)
        while self._recent and self._recent[0].ended_s < now - WINDOW_S:
            self._recent.popleft()
