"""Real processes. Each prints its pid; a session is over when none of them lives any more."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

SOURCE = Path(__file__).parents[3] / "src"
LIMIT_S = 120.0
"""Only keeps a failing test from hanging: a busy machine takes its time."""

PARENT = """
import pathlib, signal, sys
from baton.platform.cli.runs import process_session

program, stop_grace_s, proc = sys.argv[1:]
process_session.TERM_GRACE_S = 0.2
process_session.PROC = pathlib.Path(proc)
handled = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
before = [signal.getsignal(number) for number in handled]
status = process_session.run_in_session(
    lambda: exec(program, {}) or 0, stop_grace_s=float(stop_grace_s)
)
assert [signal.getsignal(number) for number in handled] == before
sys.exit(status)
"""

PAUSING = """
import multiprocessing.process, time
start = multiprocessing.process.BaseProcess.start
def start_and_pause(process):
    start(process)
    time.sleep(0.5)
multiprocessing.process.BaseProcess.start = start_and_pause
"""
"""Lets a parent do nothing for a while once its child runs."""

STUBBORN = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
"""
"""A program that SIGTERM does not end; neither does it end the children it starts."""

SLEEPER = "import time; time.sleep(600)"


def report_pid(folder: Path, name: str) -> str:
    """Code that says, once the program is set up, who it is."""
    return f"""
import os, pathlib
pathlib.Path({str(folder)!r}, {name!r} + ".new").write_text(str(os.getpid()))
os.rename({str(folder / name)!r} + ".new", {str(folder / name)!r})
"""


def waits_for(folder: Path, name: str) -> str:
    return f"""
import os, time
while not os.path.exists({str(folder / name)!r}): time.sleep(0.01)
"""


def spawns(program: str, *, is_group_leader: bool = False) -> str:
    group = 0 if is_group_leader else None
    return f"""
import subprocess, sys
subprocess.Popen([sys.executable, "-c", {program!r}], process_group={group})
"""


def pid_of(folder: Path, name: str) -> int:
    deadline = time.monotonic() + LIMIT_S
    while not (folder / name).exists():
        assert time.monotonic() < deadline, f"{name} never started"
        time.sleep(0.01)
    return int((folder / name).read_text())


def is_gone(pid: int) -> bool:
    """Once it is; whoever was killed may still take a moment to die."""
    deadline = time.monotonic() + LIMIT_S
    while is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)
    return not is_alive(pid)


def is_alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextmanager
def running(
    program: str, *, stop_grace_s: float = 60.0, proc: Path = Path("/proc"), before: str = ""
) -> Iterator[subprocess.Popen[bytes]]:
    """A parent as `baton serve` is one, with `program` as its child."""
    parent = subprocess.Popen(
        [sys.executable, "-c", before + PARENT, program, str(stop_grace_s), str(proc)],
        env={**os.environ, "PYTHONPATH": str(SOURCE)},
    )
    try:
        yield parent
    finally:
        if parent.poll() is None:  # the test has failed
            for process in psutil.Process(parent.pid).children(recursive=True):
                process.kill()
            parent.kill()
            parent.wait()


def status_after(program: str, *, proc: Path = Path("/proc")) -> int:
    """The parent's, when its child has run `program`."""
    with running(program, proc=proc) as parent:
        return parent.wait(LIMIT_S)


@pytest.mark.parametrize("status", [0, 42])
def test_the_childs_exit_status_is_passed_on_and_signal_handlers_are_put_back(status: int) -> None:
    assert status_after(f"import sys; sys.exit({status})") == status


def test_a_child_that_a_signal_kills_has_the_status_that_shells_give_it() -> None:
    program = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"

    assert status_after(program) == 128 + signal.SIGKILL


def test_the_child_leads_a_session_and_has_what_its_parent_has_imported() -> None:
    program = """
import os, sys
assert os.getsid(0) == os.getpid()
assert "baton.platform.cli.runs.process_session" in sys.modules
sys.exit(7)
"""
    assert status_after(program) == 7


@pytest.mark.parametrize("is_group_leader", [False, True], ids=["same group", "own group"])
def test_grandchildren_that_ignore_sigterm_do_not_outlive_the_child(
    tmp_path: Path, is_group_leader: bool
) -> None:
    grandchild = STUBBORN + report_pid(tmp_path, "grandchild") + SLEEPER
    child = spawns(grandchild, is_group_leader=is_group_leader) + waits_for(tmp_path, "grandchild")

    assert status_after(child + "sys.exit(3)") == 3
    assert is_gone(pid_of(tmp_path, "grandchild"))


def test_without_proc_the_childs_process_group_is_ended(tmp_path: Path) -> None:
    grandchild = STUBBORN + report_pid(tmp_path, "grandchild") + SLEEPER
    child = spawns(grandchild) + waits_for(tmp_path, "grandchild")

    assert status_after(child, proc=tmp_path / "no such folder") == 0

    assert is_gone(pid_of(tmp_path, "grandchild"))


def test_a_signal_that_comes_right_behind_the_fork_leaves_no_child_behind(tmp_path: Path) -> None:
    with running(report_pid(tmp_path, "child") + SLEEPER, before=PAUSING) as parent:
        child = pid_of(tmp_path, "child")

        parent.send_signal(signal.SIGTERM)

        assert parent.wait(LIMIT_S) == 0
    assert is_gone(child)


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_asks_the_child_to_stop_and_waits_for_it(
    tmp_path: Path, signum: signal.Signals
) -> None:
    program = f"""
import signal, sys, time, pathlib
def stop(*_):
    time.sleep(0.3)
    pathlib.Path({str(tmp_path / "farewell")!r}).write_text("in peace")
    sys.exit(0)
signal.signal(signal.SIGTERM, stop)
{report_pid(tmp_path, "child")}
time.sleep(600)
"""
    with running(program) as parent:
        child = pid_of(tmp_path, "child")

        parent.send_signal(signum)

        assert parent.wait(LIMIT_S) == 0
        assert (tmp_path / "farewell").read_text() == "in peace"
        assert not is_alive(child)


def test_a_child_that_simply_ends_when_asked_counts_as_a_success(tmp_path: Path) -> None:
    with running(report_pid(tmp_path, "child") + SLEEPER) as parent:
        pid_of(tmp_path, "child")

        parent.terminate()

        assert parent.wait(LIMIT_S) == 0


def test_a_child_that_fails_while_it_stops_is_a_failure(tmp_path: Path) -> None:
    program = f"""
import signal, sys, time
signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
{report_pid(tmp_path, "child")}
time.sleep(600)
"""
    with running(program) as parent:
        pid_of(tmp_path, "child")

        parent.terminate()

        assert parent.wait(LIMIT_S) == 5


def stubborn_family(folder: Path) -> str:
    """The child says when it is asked to stop, and does not."""
    grandchild = STUBBORN + report_pid(folder, "grandchild") + SLEEPER
    says_so = f"""
def say(*_):
    exec({report_pid(folder, "asked")!r})
signal.signal(signal.SIGTERM, say)
"""
    return STUBBORN + spawns(grandchild) + says_so + report_pid(folder, "child") + SLEEPER


def test_a_second_signal_does_not_wait(tmp_path: Path) -> None:
    with running(stubborn_family(tmp_path)) as parent:
        family = [pid_of(tmp_path, name) for name in ("child", "grandchild")]

        parent.send_signal(signal.SIGINT)
        pid_of(tmp_path, "asked")  # two signals at once would be one
        assert parent.poll() is None
        parent.send_signal(signal.SIGINT)

        assert parent.wait(LIMIT_S) == 128 + signal.SIGKILL
        assert all(is_gone(pid) for pid in family)


def test_a_child_that_does_not_stop_in_time_is_ended(tmp_path: Path) -> None:
    with running(stubborn_family(tmp_path), stop_grace_s=0.1) as parent:
        family = [pid_of(tmp_path, name) for name in ("child", "grandchild")]

        parent.terminate()

        assert parent.wait(LIMIT_S) == 128 + signal.SIGKILL
        assert all(is_gone(pid) for pid in family)


@pytest.mark.skipif(sys.platform != "linux", reason="prctl is a Linux call")
def test_a_child_hears_of_the_death_of_its_parent_even_by_sigkill(tmp_path: Path) -> None:
    program = f"""
from baton.platform.cli.runs.process_session import end_with_parent
end_with_parent()
{report_pid(tmp_path, "child")}
import time
time.sleep(600)
"""
    with running(program) as parent:
        child = pid_of(tmp_path, "child")

        parent.kill()

        assert is_gone(child)


def test_a_child_whose_parent_died_before_it_could_hear_of_it_ends_too(tmp_path: Path) -> None:
    program = f"""
{report_pid(tmp_path, "child")}
{waits_for(tmp_path, "parent is dead")}
from baton.platform.cli.runs.process_session import end_with_parent
end_with_parent()
time.sleep(600)
"""
    with running(program) as parent:
        child = pid_of(tmp_path, "child")
        parent.kill()
        parent.wait()

        (tmp_path / "parent is dead").touch()

        assert is_gone(child)


def test_an_orphan_can_end_the_rest_of_its_session(tmp_path: Path) -> None:
    grandchild = STUBBORN + report_pid(tmp_path, "grandchild") + SLEEPER
    program = f"""
{STUBBORN}
{spawns(grandchild)}
{report_pid(tmp_path, "child")}
from baton.platform.cli.runs.process_session import end_session, is_orphan
while not is_orphan(): time.sleep(0.01)
end_session(os.getsid(0))
{report_pid(tmp_path, "survivor")}
"""
    with running(program) as parent:
        family = [pid_of(tmp_path, name) for name in ("child", "grandchild")]

        parent.kill()

        assert pid_of(tmp_path, "survivor") == family[0]
        assert is_gone(family[1])
