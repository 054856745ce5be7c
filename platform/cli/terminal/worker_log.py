"""Shows the logs of replicas and gateways in `baton serve`.

    replica --stderr--> Ray's log monitor --batches of lines--> WorkerLog --> our standard error

Other output of Ray's workers is shown with --verbose only. Messages of Ray's node, for example
about a killed worker, become lines of our log (`rays_words.py`).
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from baton.core.clock import Clock, monotonic
from baton.platform.cli.terminal.rays_words import Process, in_one_line
from baton.platform.observe.logs import CONTINUED, Lines, LogFormat, as_info, level_of, source_of

log = logging.getLogger(__name__)

AGAIN_S = 5.0
"""The same line after so long is about something else, such as another process that died."""


class WorkerLog:
    """Called with Ray's batches: lines of one process, in order."""

    def __init__(self, out: Lines, style: LogFormat, *, shows_all: bool = False) -> None:
        self._out = out
        self._style: LogFormat = style
        self._min_level = logging.INFO if shows_all else logging.WARNING
        self._shows_all = shows_all
        self._is_shown_by_stream: dict[tuple[Any, ...], bool] = {}
        """By process: whether its last record was shown, since further lines of it follow that."""
        self.names: dict[Process, str] = {}
        """What processes call themselves."""

    def __call__(self, batch: Mapping[str, Any]) -> None:
        lines: Sequence[str] = batch.get("lines", ())
        stream = tuple(map(batch.get, ("ip", "pid", "is_err")))
        process = str(batch.get("ip")), str(batch.get("pid"))
        for line in lines:
            if name := source_of(line):
                self.names[process] = name
            if self._is_to_be_shown(line, stream):
                self._out.write(f"{line}\n")
            elif self._shows_all:
                source = f"{batch.get('actor_name') or 'Ray'} {batch.get('pid')}"
                self._out.write(f"{as_info(self._style, source, line)}\n")
        self._out.flush()

    def _is_to_be_shown(self, line: str, stream: tuple[Any, ...]) -> bool:
        if not line.startswith(CONTINUED):
            level = level_of(line)
            self._is_shown_by_stream[stream] = level is not None and level >= self._min_level
        return self._is_shown_by_stream.get(stream, False)


class NodeLog:
    """Replaces Ray's printing; drops repeated messages."""

    def __init__(
        self, names: Mapping[Process, str], *, shows_all: bool, clock: Clock = monotonic
    ) -> None:
        self._names = names
        self._shows_all = shows_all
        self._clock = clock
        self._last = ""
        self._said_at = 0.0

    def __call__(self, data: Mapping[str, Any], ignore_prefix: bool = False) -> None:
        for text in data.get("lines", ()):
            line = text.strip() if self._shows_all else in_one_line(text, self._names)
            now = self._clock()
            if line and (line != self._last or now - self._said_at >= AGAIN_S):
                log.warning("%s", line)
                self._last, self._said_at = line, now


def follow_workers(worker_log: WorkerLog, node_log: NodeLog) -> None:
    """Replace Ray's own printing, after `ray.init(log_to_driver=True)` has returned."""
    from ray._private import worker
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

    worker.print_to_stdstream = node_log

    dispatcher.remove_handler("ray_print_logs")
    dispatcher.add_handler("baton", worker_log)
