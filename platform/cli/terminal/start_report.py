"""Progress lines of `baton serve` while a deployment starts: each stage, and what is awaited.

starting Ray
starting 1 prefill and 1 decode replica
decode-ab12: importing
decode-ab12: loading weights
still waiting after 15 s: decode 0/1: decode-ab12: loading weights 40% (9 s)
decode-ab12: ready
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

from baton.core.clock import Clock, monotonic
from baton.core.ids import ReplicaId
from baton.core.replicas import ReplicaInfo, StartingReplica
from baton.gateway.requests.readiness import Missing
from baton.platform.cli.terminal.progress import StartBars

REPEAT_S = 15.0
TICK_S = 1.0


class StartReport:
    """`say` is called once per line; the bars always show the newest state."""

    def __init__(
        self, say: Callable[[str], None], bars: StartBars, clock: Clock = monotonic
    ) -> None:
        self._say = say
        self._bars = bars
        self._clock = clock
        self._began_at = self._said_at = clock()
        self._stage = ""
        self._missing = ""
        self._fractions: Mapping[str, float] = {}
        self._stage_by_replica: dict[ReplicaId, str] = {}
        self._lock = threading.Lock()

    def enter(self, stage: str) -> None:
        """Enter a stage of the whole deployment."""
        with self._lock:
            self._stage = stage
            self._print(stage)

    def see(
        self,
        ready: Sequence[ReplicaInfo],
        starting: Sequence[StartingReplica],
        missing: Sequence[Missing],
    ) -> None:
        """Take in the registry's current state."""
        stages = {one.replica_id: _stage(one) for one in starting}
        stages |= {info.replica_id: "ready" for info in ready}
        with self._lock:
            self._fractions = {
                f"{one.replica_id} {one.stage}": one.fraction
                for one in starting
                if one.fraction is not None
            }
            for replica_id, stage in stages.items():
                if self._stage_by_replica.get(replica_id) != stage:
                    self._stage_by_replica[replica_id] = stage
                    self._print(f"{replica_id}: {stage}")
            self._missing = "; ".join(map(str, missing))
            self._show()

    def wait_for(self, what: str) -> None:
        """Wait for something that is not a stage; reported only if it takes long."""
        with self._lock:
            self._stage = what
            self._show()

    def tick(self) -> None:
        """Repeat what is awaited if nothing was printed for a while."""
        with self._lock:
            now = self._clock()
            if now - self._said_at >= REPEAT_S:
                self._print(
                    f"still waiting after {now - self._began_at:.0f} s: {self._waiting_for()}"
                )

    @contextmanager
    def ticking(self) -> Iterator[None]:
        """Tick on another thread, since the main one may block."""
        is_over = threading.Event()

        def run() -> None:
            while not is_over.wait(TICK_S):
                self.tick()

        thread = threading.Thread(target=run, daemon=True)
        thread.start()
        try:
            yield
        finally:
            is_over.set()
            thread.join()

    def _waiting_for(self) -> str:
        """What is awaited: replicas, or once the registry has all, the gateway's connections to
        them."""
        return self._missing or self._stage

    def _print(self, line: str) -> None:
        self._said_at = self._clock()
        self._say(line)
        self._show()

    def _show(self) -> None:
        self._bars.show(self._waiting_for(), self._fractions)


def _stage(one: StartingReplica) -> str:
    return f"failed while {one.stage}: {one.failure}" if one.failure else one.stage
