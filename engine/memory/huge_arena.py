"""The KV arena comes to lie on pages of 2 MB while it is used, beside the steps.

    regions of 2 MB   small pages --> all of it written by some request --> one huge page, for good

The kernel copies a region in some milliseconds, in which whoever touches it waits. So the start and
first tokens have small pages, as if there were no others; a thread moves what is in use by then,
one region after the other while the engine rests, and few of them while it computes. Memory that
nobody wrote stays unused. A kernel that makes no such pages of shared memory is asked once.
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
"""Seconds between two looks: after something was moved, and at most."""
SHARE_BUSY = 0.02
"""Share of the time that is spent on moving while the engine computes."""
SHARE_LOOKING = 0.01
"""The same of this thread's own, at most: arenas may be large."""
FULL = HUGE_PAGE
"""Bytes of a region that are in use before it is moved: the rest of it would become memory."""
MAX_FAILURES = 8
"""Regions that cannot be moved, one after the other, before a look ends: memory is in pieces. The
next look begins with others."""

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
        """Bytes that were moved onto huge pages. Counted: to tell what lies where, the kernel would
        look at all pages of the process, for tens of milliseconds of a core that computes."""

    def start(self, is_busy: Callable[[], bool]) -> None:
        """Begin to look. `is_busy`: whether the engine computes."""
        self._ended.clear()
        self._thread = threading.Thread(
            target=self._run, args=(is_busy,), name="huge pages", daemon=True
        )
        self._thread.start()

    def stop(self) -> None:
        """Returns once nothing is moved any more; it may be started again."""
        self._ended.set()
        if self._thread is not None:
            self._thread.join()

    def look(self, is_busy: Callable[[], bool]) -> int:
        """Move the regions that are in use by now. Returns how many were."""
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
    """Whether the last page of a region is in use: asked first, as it takes a tenth of the time."""
    return num_resident(address + HUGE_PAGE - mmap.PAGESIZE, mmap.PAGESIZE) > 0
