"""What replicas and gateways log, shown by `baton serve`.

    replica --stderr--> Ray's log monitor --batches of lines--> WorkerLog --> our standard error

Ray's workers also print what is of no use to an operator; that is shown with --verbose only.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from baton.platform.observe.logs import CONTINUED, Lines, LogFormat, as_info, level_of


class WorkerLog:
    """Called with Ray's batches: lines of one process, in order."""

    def __init__(self, out: Lines, style: LogFormat, *, shows_all: bool = False) -> None:
        self._out = out
        self._style: LogFormat = style
        self._min_level = logging.INFO if shows_all else logging.WARNING
        self._shows_all = shows_all
        self._is_shown_by_stream: dict[tuple[Any, ...], bool] = {}
        """Whether the record written last there was shown: its further lines then are."""

    def __call__(self, batch: Mapping[str, Any]) -> None:
        lines: Sequence[str] = batch.get("lines", ())
        stream = tuple(map(batch.get, ("ip", "pid", "is_err")))
        for line in lines:
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


def follow_workers(log: WorkerLog, *, prints_rays_own: bool) -> None:
    """Take the place of Ray's own printing, once `ray.init(log_to_driver=True)` has returned.

    What is left of that are lines of the raylet, such as of a worker that was killed: free text,
    which may not stand between objects of JSON.
    """
    from ray._private import worker
    from ray._private.ray_logging import global_worker_stdstream_dispatcher as dispatcher

    worker._worker_logs_enabled = prints_rays_own

    dispatcher.remove_handler("ray_print_logs")
    dispatcher.add_handler("baton", log)
