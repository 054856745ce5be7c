"""Runs a function in its own process session, and leaves no process behind.

Ray starts a dozen processes, some of which outlive an abrupt end of their parent. All belong to the
session of the process that started Ray; so that process is a child with its own session, and the
rest of the session is ended with it.

The child is a fork, so that it need not import modules again.
"""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import FrameType

PR_SET_PDEATHSIG = 1
PARENT_PID = "BATON_PARENT_PID"
"""The environment variable with the parent's process id."""
PROC = Path("/proc")
HANDLED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
LOOK_S = 0.5
"""Seconds between checks for a second signal; the end of the child is noticed at once."""
POLL_S = 0.1
TERM_GRACE_S = 3.0


def run_in_session(run: Callable[[], int], *, stop_grace_s: float) -> int:
    """Let a child `run`, until it returns its exit status or this process gets a signal to stop.

    To be called while this process has one thread: a fork has no others.

    The first SIGINT or SIGTERM asks the child to stop and waits for it; a second one does not wait.
    A child that died of a signal has the status that shells give it, 128 + the signal's number.
    """
    child = multiprocessing.get_context("fork").Process(target=_lead, args=(run, os.getpid()))
    num_signals = 0
    asked_at = 0.0

    def request_stop(signum: int, frame: FrameType | None) -> None:
        nonlocal num_signals, asked_at
        num_signals += 1
        asked_at = asked_at or time.monotonic()
        child.terminate()

    # Signals are blocked across the fork, so that none is lost before both have handlers.
    signal.pthread_sigmask(signal.SIG_BLOCK, HANDLED)
    child.start()
    assert child.pid is not None
    previous = {signum: signal.signal(signum, request_stop) for signum in HANDLED}
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    try:
        while child.is_alive():
            is_late = num_signals and time.monotonic() - asked_at > stop_grace_s
            if num_signals > 1 or is_late:
                break
            child.join(LOOK_S)
    finally:
        end_session(child.pid)
        for signum, handler in previous.items():
            signal.signal(signum, handler)
    child.join()
    status = child.exitcode or 0
    if num_signals and status in (0, -signal.SIGTERM):
        return 0
    return status if status >= 0 else 128 - status


def _lead(run: Callable[[], int], parent: int) -> None:
    """In the child: `run` as the leader of a session."""
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HANDLED)
    os.setsid()
    os.environ[PARENT_PID] = str(parent)
    status = run()
    if is_orphan():  # no other process would end the remaining ones
        end_session(os.getsid(0))
    sys.exit(status)


def end_with_parent() -> None:
    """Let the kernel send this process SIGTERM when its parent dies (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
    if is_orphan():  # the parent died before it could be watched
        os.kill(os.getpid(), signal.SIGTERM)


def is_orphan() -> bool:
    """Whether the caller of `run_in_session`, this process's parent, has died."""
    parent = str(os.getppid())
    return os.environ.get(PARENT_PID, parent) != parent


def end_session(session_id: int) -> None:
    """End every other process of the session: SIGTERM first, SIGKILL for what stays."""
    _signal_all(session_id, signal.SIGTERM)
    deadline = time.monotonic() + TERM_GRACE_S
    while _members(session_id) and time.monotonic() < deadline:
        time.sleep(POLL_S / 2)
    deadline = time.monotonic() + TERM_GRACE_S
    while _members(session_id):  # listing processes may take longer than that
        _signal_all(session_id, signal.SIGKILL)  # repeated: one may have forked meanwhile
        if time.monotonic() > deadline:
            break
        time.sleep(POLL_S / 2)


def _signal_all(session_id: int, signum: int) -> None:
    for pid in _members(session_id):
        with suppress(ProcessLookupError, PermissionError):  # already ended; or not ours
            os.kill(pid, signum)


def _members(session_id: int) -> list[int]:
    """Live processes of the session except this one. Without /proc, the process group of its
    leader.
    """
    if not PROC.is_dir():
        return _leaders_group(session_id)
    members: list[int] = []
    for stat in PROC.glob("[0-9]*/stat"):
        try:
            # pid (name) state ppid pgrp session ...; the name may contain anything
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue  # it has just ended
        pid = int(stat.parent.name)
        if int(session) == session_id and state != "Z" and pid != os.getpid():
            members.append(pid)
    return members


def _leaders_group(session_id: int) -> list[int]:
    """A negative number stands for the group of that id, as it does for `os.kill`."""
    try:
        os.kill(-session_id, 0)
    except (ProcessLookupError, PermissionError):
        return []
    return [-session_id]
