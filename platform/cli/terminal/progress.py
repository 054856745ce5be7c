"""Progress on standard error: downloads, weights, starting replicas, simulations.

Bars are drawn only on a terminal.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class DownloadBars:
    """A `baton.platform.models.download.DownloadReport`."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self._task_by_file: dict[str, TaskID] = {}

    def begin(self, file: str, num_bytes: int) -> None:
        self._task_by_file[file] = self._bars.add_task(file, total=num_bytes)

    def advance(self, file: str, num_bytes: int) -> None:
        self._bars.advance(self._task_by_file[file], num_bytes)

    def wait(self) -> None:
        self._bars.console.print("waiting for another process that fetches the model")


@contextmanager
def download_bars() -> Iterator[DownloadBars]:
    with _bars() as bars:
        yield DownloadBars(bars)


@contextmanager
def weights_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """Yields a function to call with (bytes read, total bytes)."""
    with _bars() as bars:
        task = bars.add_task(f"reading {name}", total=None)

        def report(done: int, total: int) -> None:
            bars.update(task, completed=done, total=total)

        yield report


@contextmanager
def counting_bar(what: str, total: int) -> Iterator[Callable[[str], None]]:
    """Yields a function to call for each of `total` that is done. A text given to it is printed as
    a line if standard error is no terminal.
    """
    columns = (
        TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    )  # fmt: skip
    console = Console(stderr=True)
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        task = bars.add_task(what, total=total)

        def advance(milestone: str) -> None:
            bars.advance(task)
            if milestone and not console.is_terminal:
                console.out(f"{what}: {milestone}", highlight=False)

        yield advance


class StartBars:
    """Bars of a starting deployment: its stage, and how far each replica has loaded."""

    def __init__(self, bars: Progress) -> None:
        self._bars = bars
        self.are_drawn = not bars.disable
        self._stage = bars.add_task("", total=None)
        self._task_by_replica: dict[str, TaskID] = {}

    def write(self, text: str) -> None:
        """Print `text` above the bars, unchanged."""
        self._bars.console.out(text, end="", highlight=False)

    def flush(self) -> None:
        """Does nothing: output is immediate. For callers that use this as a stream."""

    def show(self, stage: str, fractions: Mapping[str, float]) -> None:
        """Update the bars. Replicas missing in `fractions` have loaded."""
        self._bars.update(self._stage, description=stage)
        for replica in self._task_by_replica.keys() - fractions.keys():
            self._bars.remove_task(self._task_by_replica.pop(replica))
        for replica, fraction in fractions.items():
            if replica not in self._task_by_replica:
                self._task_by_replica[replica] = self._bars.add_task(replica, total=1.0)
            self._bars.update(self._task_by_replica[replica], completed=fraction)


@contextmanager
def start_bars() -> Iterator[StartBars]:
    console = Console(stderr=True)
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn())
    with Progress(
        *columns, console=console, transient=True, disable=not console.is_terminal
    ) as bars:
        yield StartBars(bars)


def _bars() -> Progress:
    console = Console(stderr=True)
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
        console=console,
        transient=True,
        disable=not console.is_terminal,
    )
