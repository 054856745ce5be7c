"""From `baton serve` to the first answer, and what the processes hold and do while nobody asks.

    command -> session -> Ray up -> Serve up -> replicas begin -> announced -> first answer

The phases are seen from outside, by the processes that appear; all in a warm page cache.

    python -m bench.startup
"""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil
from bench.live_deployment import LiveDeployment
from bench.report import number, surroundings, table
from bench.sse_client import Connection

NUM_STARTS = 5
POLL_S = 0.05
SETTLE_S = 10.0
"""After the first answer, before anything is called idle."""
IDLE_S = 20.0
CONFIG = {"dtype": "float32"}
QUESTION = {"prompt": "def add(a, b):\n", "max_tokens": 8, "temperature": 0}
MIB = 1 << 20

PHASES = {
    "Ray: head (GCS) runs": "gcs_server",
    "Ray: node (raylet) runs": "/raylet",
    "Ray: Serve's controller runs": "ray::ServeController",
    "Registry begins": "ray::ServeReplica:baton:Registry",
    "Decode begins": "ray::ServeReplica:baton:Decode",
    "Prefill begins": "ray::ServeReplica:baton:Prefill",
    "Gateway begins": "ray::ServeReplica:baton:Gateway",
}
"""What is part of a command line, once that much has happened."""

BATON_PROCESSES = {
    "Decode": "ray::ServeReplica:baton:Decode",
    "Prefill": "ray::ServeReplica:baton:Prefill",
    "Gateway": "ray::ServeReplica:baton:Gateway",
    "Registry": "ray::ServeReplica:baton:Registry",
    "driver": "baton.platform.cli.serving",
    "command": "baton.platform.cli.main",
}
RAY_PROCESSES = {
    "head (GCS)": "gcs_server",
    "node (raylet)": "/raylet",
    "Serve's controller": "ray::ServeController",
    "dashboard": "dashboard/dashboard.py",
    "dashboard agent": "ray::DashboardAgent",
    "runtime env agent": "ray::RuntimeEnvAgent",
    "log monitor": "log_monitor.py",
    "autoscaler monitor": "autoscaler/_private/monitor.py",
    "idle workers": "ray::IDLE",
}

Kind = tuple[str, str]
"""Whose process, and which."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Seconds since the command was given."""

    phases: Mapping[str, float]
    announced: float
    answered: float
    cpu: Mapping[Kind, float]
    """CPU seconds by kind of process, of those that still run when the answer is there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """All processes of one kind together."""

    kind: Kind
    num_processes: int
    rss_mib: float
    pss_mib: float
    """Shared pages are counted in parts: the sum over all processes is what they really hold."""
    cpu_percent: float
    """Of one core."""


def measure(num_starts: int, idle_s: float) -> tuple[list[Start], list[Idle]]:
    """One start more than asked for comes first and is not counted: it warms the page cache."""
    starts: list[Start] = []
    with LiveDeployment(CONFIG) as deployment:
        deployment.wait()
    for remaining in reversed(range(num_starts)):
        with LiveDeployment(CONFIG) as deployment:
            starts.append(_watch_start(deployment))
            if not remaining:
                time.sleep(SETTLE_S)
                return starts, _watch_idle(deployment.processes(), idle_s)
    raise ValueError("at least one start is needed")


def _watch_start(deployment: LiveDeployment) -> Start:
    phases: dict[str, float] = {}
    while not deployment.is_announced:
        commands = [_command(process) for process in deployment.processes()]
        now = time.perf_counter() - deployment.started_at
        for phase, part in PHASES.items():
            if any(part in command for command in commands):
                phases.setdefault(phase, now)
        time.sleep(POLL_S)
    port = deployment.wait()
    asyncio.run(_ask(port))
    answered = time.perf_counter() - deployment.started_at
    return Start(
        phases=phases,
        announced=deployment.announced_at - deployment.started_at,
        answered=answered,
        cpu={
            kind: sum(map(_cpu_seconds, group))
            for kind, group in _by_kind(deployment.processes()).items()
        },
    )


async def _ask(port: int) -> None:
    connection = await Connection.open(port)
    await connection.complete(QUESTION)
    await connection.close()


def _watch_idle(processes: Sequence[psutil.Process], idle_s: float) -> list[Idle]:
    before = {process: _cpu_seconds(process) for process in processes}
    time.sleep(idle_s)
    return [
        Idle(
            kind=kind,
            num_processes=len(group),
            rss_mib=sum(process.memory_info().rss for process in group) / MIB,
            pss_mib=sum(process.memory_full_info().pss for process in group) / MIB,
            cpu_percent=sum(_cpu_seconds(p) - before[p] for p in group) / idle_s * 100,
        )
        for kind, group in sorted(_by_kind(processes).items())
    ]


def _by_kind(processes: Sequence[psutil.Process]) -> dict[Kind, list[psutil.Process]]:
    members: dict[Kind, list[psutil.Process]] = {}
    for process in processes:
        if process.is_running():
            members.setdefault(_kind(_command(process)), []).append(process)
    return members


def _kind(command: str) -> Kind:
    for owner, kinds in (("Baton", BATON_PROCESSES), ("Ray", RAY_PROCESSES)):
        for kind, part in kinds.items():
            if part in command:
                return owner, kind
    return "other", command.split(" ")[0]


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())
    except psutil.NoSuchProcess:
        return ""


def _cpu_seconds(process: psutil.Process) -> float:
    times = process.cpu_times()
    return times.user + times.system


def report(*, is_quick: bool = False) -> str:
    starts, idle = measure(1, 3.0) if is_quick else measure(NUM_STARTS, IDLE_S)
    return "\n\n".join(
        (
            f"### From the command to the first answer, 1P+1D, median of {len(starts)}",
            _start_table(starts),
            "### By process, 1P+1D: CPU to start, then idle",
            _process_table(starts, idle),
        )
    )


def _start_table(starts: Sequence[Start]) -> str:
    rows: list[tuple[str, float]] = []
    for phase in PHASES:
        seen = [start.phases[phase] for start in starts if phase in start.phases]
        if seen:
            rows.append((phase, statistics.median(seen)))
    rows.append(("announced as ready", statistics.median(start.announced for start in starts)))
    rows.append(("first completion answered", statistics.median(s.answered for s in starts)))
    spread = " to ".join(number(f(start.answered for start in starts)) for f in (min, max))
    return f"{table(('seen', 's after the command'), rows)}\n\nFirst answer: {spread} s."


def _process_table(starts: Sequence[Start], idle: Sequence[Idle]) -> str:
    def row(name: str, group: Sequence[Idle]) -> tuple[str | float, ...]:
        return (
            name,
            str(sum(one.num_processes for one in group)),
            statistics.median(sum(s.cpu.get(one.kind, 0) for one in group) for s in starts),
            sum(one.rss_mib for one in group),
            sum(one.pss_mib for one in group),
            sum(one.cpu_percent for one in group),
        )

    rows = [row(": ".join(one.kind), [one]) for one in idle]
    for owner in sorted({one.kind[0] for one in idle}):
        rows.append(row(f"**{owner}**", [one for one in idle if one.kind[0] == owner]))
    rows.append(row("**all**", idle))
    header = ("process", "count", "CPU s to start", "RSS, MiB", "PSS, MiB", "idle, % of a core")
    return table(header, rows)


if __name__ == "__main__":
    print(f"{surroundings()}\n\n{report()}")
