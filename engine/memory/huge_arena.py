"""Moves the used parts of the KV arena onto huge pages of 2 MB, in the background.

    regions of 2 MB   small pages --> completely written --> one huge page, for good

The kernel copies a region in some milliseconds, during which accesses to it wait. So the cache
starts on small pages; a thread later moves used regions, one after the other while the engine is
idle, and few while it computes. Unwritten memory stays unused. A kernel without huge pages for
shared memory is asked only once.
"""

from __future__ import annotations

import errno
import logging
import mmap
import threading
import time
from collections.abc import Callable

from baton.kernels.cpu.shared_mapping import HUGE_PAGE, address_of, collapse, num_resident

log = logging.getLogger(__name__)

LOOK_S, REST_S = 5.0, 60.0
"""Seconds between scans: after a move, and at most."""
SHARE_BUSY = 0.02
"""Share of the time that is spent on moving while the engine computes."""
SHARE_LOOKING = 0.01
"""The most of this thread's time spent on scanning, since arenas may be large."""
FULL = HUGE_PAGE
"""Used bytes of a region before it is moved, since the rest would become used, too."""
MAX_FAILURES = 8
"""Consecutive failures after which a scan ends, since memory is fragmented. The next scan begins
with other regions."""

Collapse = Callable[[int, int], int]


class HugeArena:
    def __init__(self, memory: memoryview, collapse: Collapse = collapse) -> None:
        """`memory`: writable, of `shared_mapping.mapped`."""
        self._memory = memory  # stays mapped
        self._address = address_of(memory)
        self._left = list(range(memory.nbytes // HUGE_PAGE))
        """Regions on small pages."""
        self._collapse = collapse
        self._has_moved = False
        self._ended = threading.Event()
        self._thread: threading.Thread | None = None
        self.num_bytes = 0
        """Bytes moved onto huge pages. Counted here, since the kernel would have to scan all pages
        of the process: tens of milliseconds."""

    def start(self, is_busy: Callable[[], bool]) -> None:
        """Start scanning. `is_busy`: whether the engine computes."""
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._run, args=(is_busy,), name="huge pages", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Stop, after a running move; can be started again."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def look(self, is_busy: Callable[[], bool]) -> int:
        """Move the used regions; return their number."""
        still, failed = list[int](), list[int]()
        failures, before = 0, len(self._left)
        for place, region in enumerate(self._left):
            address = self._address + region * HUGE_PAGE
            if failures >= MAX_FAILURES or self._ended.is_set():
                still += self._left[place:]
                break
            if not (_is_begun(address) and num_resident(address, HUGE_PAGE) >= FULL):
                still.append(region)
                continue
            began_s = time.perf_counter()
            error = self._collapse(address, HUGE_PAGE)
            took_s = time.perf_counter() - began_s
            if error == errno.EINVAL and not self._has_moved:
                log.debug("the KV arena stays on small pages: this kernel makes no others of it")
                self._left = []
                return 0
            failures = failures + 1 if error else 0
            self._has_moved |= not error
            if error:
                failed.append(region)
            else:
                self.num_bytes += HUGE_PAGE
            self._ended.wait(took_s / SHARE_BUSY if is_busy() else took_s)
        self._left = still + failed
        return before - len(self._left)

    def _run(self, is_busy: Callable[[], bool]) -> None:
        wait_s = LOOK_S
        while self._left and not self._ended.wait(wait_s):
            began_s = time.thread_time()
            num_moved = self.look(is_busy)
            least_s = (time.thread_time() - began_s) / SHARE_LOOKING
            if num_moved:
                log.debug("%d bytes of the KV arena are on huge pages", self.num_bytes)
            wait_s = max(LOOK_S if num_moved else min(2 * wait_s, REST_S), least_s)


def _is_begun(address: int) -> bool:
    """Whether the last page of a region is in use: a cheap first check."""
    return num_resident(address + HUGE_PAGE - mmap.PAGESIZE, mmap.PAGESIZE) > 0
