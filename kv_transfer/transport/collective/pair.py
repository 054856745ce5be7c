"""Pieces on their way between two joined processes, from P to D, as D grants them.

    P  SendingPair                                            D  ReceivingPair
       lend: in line ---- ticket, on the control stream ----> expect: in line
       post: copy, send <---- grant: which, in what order ---- as many as it will receive
       thread: wait      ---- which of them it has sent -----> receive; thread: wait

P posts no send that D has not promised to receive, and D promises a bounded number of bytes. What
waits, waits in a line, as lent blocks, and blocks neither a thread nor a device nor an event loop.
So pairs do not wait for each other, whatever their peers do, nor do transfers that share one: bytes
in both directions between two devices can cross, and a late announcement delays its own transfer
alone. Posting never blocks on a peer.

Both sides post in the order of D's grants: NCCL matches sends and receives by order, and so does
Gloo under one tag. D receives only what P says it has sent. A piece that P took back, or whose
transfer D gave up, while it was in line is left out; a piece that has been granted is received even
if nobody wants it any more, so that nothing gets out of step and nothing stays on the way.

A pair breaks as a whole and for good: when its peer dies (noticed at once while D awaits bytes, and
with the control stream otherwise), or when P stands still for `PATIENCE_S`. All that wait are told
at once, whatever the pair's thread is still stuck in. P has no such limit for D.
"""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from baton.core.errors import TransportFailed
from baton.kv_transfer.transport.collective.joint import PATIENCE_S, Group
from baton.kv_transfer.transport.collective.staging import Staging
from baton.kv_transfer.transport.daemon import DaemonThread

MAX_JOINING_S = 2 * PATIENCE_S
"""Some calls of torch.distributed make several attempts."""
CLOSING_S = 1.0
"""A thread that comes back from C++ while the interpreter ends would abort the process."""


class Pair(ABC):
    """What both ends have: a group, and a thread that joins it and waits for what is posted."""

    def __init__(self, name: str, join: Callable[[], Group], staging: Staging) -> None:
        self.name = name
        self.num_users = 0
        """Streams that are open: it must not go."""
        self._staging = staging
        self._loop = asyncio.get_running_loop()
        self._group: Group | None = None
        self._failure: TransportFailed | None = None
        self._resting: asyncio.Future[None] = self._loop.create_future()
        self._joined: asyncio.Future[None] = self._loop.create_future()
        self._thread = DaemonThread(name)
        self._thread.call(join).add_done_callback(self._has_joined)
        self._deadline = self._loop.call_later(MAX_JOINING_S, self.break_, "joining took too long")

    @property
    def is_broken(self) -> bool:
        return self._failure is not None

    @property
    def is_in_use(self) -> bool:
        return self.num_users > 0

    async def joined(self) -> None:
        """Return when pieces can go. Raises TransportFailed."""
        await asyncio.shield(self._joined)
        self.check()

    def break_(self, why: str) -> None:
        """Nothing goes over it any more. Returns at once; repeating it changes nothing."""
        if self._failure is not None:
            return
        self._failure = TransportFailed(f"{self.name}: {why}")
        self._deadline.cancel()
        if not self._joined.done():
            self._joined.set_exception(self._failure)
            self._joined.exception()  # nobody may be waiting
        group, self._group = self._group, None
        # Its connection ends with the last operation that refers to it; ending it may take a while.
        self._thread.post(partial(_let_go, group))
        self._resting = self._thread.call(_nothing)
        self._thread.stop()
        self._on_broken(self._failure)

    async def close(self, why: str) -> None:
        """Break it, and give its thread a moment to let go of it; it may be stuck."""
        self.break_(why)
        await asyncio.wait({self._resting}, timeout=CLOSING_S)

    @abstractmethod
    def _on_broken(self, failure: TransportFailed) -> None:
        """Tell all that wait for a piece."""

    def check(self) -> None:
        """Raises TransportFailed if it is broken."""
        if self._failure is not None:
            raise TransportFailed(str(self._failure))

    def _has_joined(self, joining: asyncio.Future[Group]) -> None:
        if error := joining.exception():
            self.break_(f"the two did not find each other: {first_line(error)}")
        elif self._failure is None:
            self._deadline.cancel()
            self._group = joining.result()
            self._joined.set_result(None)

    def _tell(self, function: Callable[[], None]) -> None:
        """Run it on the loop; from any thread."""
        with suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(function)

    def _broke(self, error: Exception) -> None:
        """From the pair's thread."""
        self._tell(partial(self.break_, first_line(error)))


def _nothing() -> None:
    """All that came before is over."""


def _let_go(group: Group | None) -> None:
    """This reference is the last, but for those of operations: the connection ends."""


def first_line(error: BaseException) -> str:
    """torch puts a stack behind it."""
    return (str(error) or type(error).__name__).splitlines()[0]
