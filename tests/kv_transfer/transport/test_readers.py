"""The threads that read pieces, shared among senders."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError, ThreadPoolExecutor

import pytest

from baton.kv_transfer.transport.tcp.readers import Share

LONG_S = 60.0


def test_a_sender_that_stands_still_leaves_others_their_threads() -> None:
    may_end = threading.Event()
    with ThreadPoolExecutor(3) as threads:
        stuck, other = Share(threads, 2), Share(threads, 2)
        held = [stuck.submit(may_end.wait, LONG_S) for _ in range(10)]

        assert other.submit(pow, 2, 5).result(LONG_S) == 32
        assert not any(each.done() for each in held)

        may_end.set()
        assert all(each.result(LONG_S) for each in held)
        assert stuck.submit(pow, 2, 6).result(LONG_S) == 64  # its threads had gone


def test_what_waits_may_be_cancelled_and_a_failure_is_told() -> None:
    may_end = threading.Event()
    with ThreadPoolExecutor(3) as threads:
        share = Share(threads, 1)
        held, waiting = share.submit(may_end.wait, LONG_S), share.submit(pow, 2, 5)
        failing = share.submit(divmod, 1, 0)

        assert waiting.cancel()
        may_end.set()

        assert held.result(LONG_S)
        with pytest.raises(CancelledError):
            waiting.result(LONG_S)
        with pytest.raises(ZeroDivisionError):
            failing.result(LONG_S)


def test_no_thread_is_left_where_the_threads_are_shut_down() -> None:
    threads = ThreadPoolExecutor(1)
    share = Share(threads, 1)
    threads.shutdown()

    for _ in range(2):
        with pytest.raises(RuntimeError):
            share.submit(pow, 2, 5)
