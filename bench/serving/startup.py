"""The time from `baton serve` to the first answer, and memory and CPU of its idle processes.

    empty application, baton serve, empty application, baton serve, ...   in turns

Each start of the demo is preceded by one of Ray with an empty Serve application: machines differ
and are shared, so the ratio is what counts. Stages are those that `baton serve` prints.

    python -m bench.serving.startup
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import psutil

from bench.harness.command_line import benchmark_parser
from bench.harness.live_deployment import LiveDeployment, user_environment
from bench.harness.report import surroundings, table
from bench.harness.sse_client import Connection
from bench.serving.empty_application import ANSWERED

NUM_STARTS = 5
SETTLE_S = 10.0
"""Seconds after the first answer until the deployment counts as idle."""
IDLE_S = 20.0
CONFIG = {"dtype": "float32"}
QUESTION = {"prompt": "def add(a, b):\n", "max_tokens": 8, "temperature": 0}
MIB = 1 << 20

BATON_PROCESSES = {
    "Decode": "ray::ServeReplica:baton:Decode",
    "Prefill": "ray::ServeReplica:baton:Prefill",
    "Gateway": "ray::ServeReplica:baton:Gateway",
    "Registry": "ray::ServeReplica:baton:Registry",
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
"""The owner and the name of a process."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """The times of one start, in seconds since the command."""

    bare: float
    """Seconds until an empty application on Ray answered, just before."""
    stages: Mapping[str, float]
    announced: float
    answered: float
    cpu: Mapping[Kind, float]
    """CPU seconds by kind of process, of those that run at the first answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Idle:
    """The idle processes of one kind together."""

    kind: Kind
    num_processes: int
    rss_mib: float
    pss_mib: float
    """Proportional set size: shared pages are divided among their processes."""
    cpu_percent: float
    """Percent of one core."""


def measure(num_starts: int, idle_s: float) -> tuple[list[Start], list[Idle]]:
    """Measure several starts. The first may be the first of this installation, which is slower."""
    starts: list[Start] = []
    for remaining in reversed(range(num_starts)):
        bare = _start_bare()
        with LiveDeployment(CONFIG) as deployment:
            starts.append(_watch_start(deployment, bare))
            if not remaining:
                time.sleep(SETTLE_S)
                return starts, _watch_idle(deployment.processes(), idle_s)
    raise ValueError("at least one start is needed")


def _start_bare() -> float:
    """Seconds until an empty application answered. Raises RuntimeError if it never did."""
    started_at = time.perf_counter()
    with subprocess.Popen(
        [sys.executable, "-m", "bench.serving.empty_application"],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=user_environment(),
    ) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if ANSWERED in line:
                return time.perf_counter() - started_at
    raise RuntimeError(f"Ray with an empty application has ended: {process.returncode}")


def _watch_start(deployment: LiveDeployment, bare: float) -> Start:
    port = deployment.wait()
    asyncio.run(_ask(port))
    answered = time.perf_counter() - deployment.started_at
    return Start(
        bare=bare,
        stages={what: at - deployment.started_at for what, at in deployment.stage_at.items()},
        announced=deployment.announced_at - deployment.started_at,
        answered=answered,
        cpu={
            kind: sum(map(_cpu_seconds, group))
            for kind, group in by_kind(deployment.processes()).items()
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
        for kind, group in sorted(by_kind(processes).items())
    ]


def by_kind(
    processes: Sequence[psutil.Process], others: Mapping[str, Mapping[str, str]] | None = None
) -> dict[Kind, list[psutil.Process]]:
    """Processes by kind. `others`: owners of other processes, by a part of their command."""
    owners = {**(others or {}), "Baton": BATON_PROCESSES, "Ray": RAY_PROCESSES}
    members: dict[Kind, list[psutil.Process]] = {}
    for process in processes:
        if process.is_running():
            members.setdefault(_kind(process, owners), []).append(process)
    return members


def _kind(process: psutil.Process, owners: Mapping[str, Mapping[str, str]]) -> Kind:
    command = command_of(process)
    for owner, kinds in owners.items():
        for kind, part in kinds.items():
            if part in command:
                return owner, "driver" if kind == "command" and _leads(process.pid) else kind
    return "other", command.split(" ")[0]


def _leads(pid: int) -> bool:
    """Whether a process is the fork of the command that leads its process session."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False


def command_of(process: psutil.Process) -> str:
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
            "### From the command until requests are taken, 1P+1D, seconds",
            _ratio_table(starts),
            f"### Stages that it prints, median of {len(starts)}",
            _stage_table(starts),
            "### By process, 1P+1D: CPU to start, then idle",
            _process_table(starts, idle),
        )
    )


def _ratio_table(starts: Sequence[Start]) -> str:
    def row(name: str, some: Sequence[Start]) -> tuple[str | float, ...]:
        bare = statistics.median(start.bare for start in some)
        ready = statistics.median(start.announced for start in some)
        ratio = statistics.median(start.announced / start.bare for start in some)
        return name, bare, ready, ratio

    rows = [row("first start", starts[:1])]
    if len(starts) > 1:
        rows.append(row(f"later starts, median of {len(starts) - 1}", starts[1:]))
    return table(("", "Ray, empty application", "baton serve", "ratio"), rows)


def _stage_table(starts: Sequence[Start]) -> str:
    stages = {stage: at for start in starts for stage, at in start.stages.items()}
    rows: list[tuple[str, float]] = [
        (stage, statistics.median(s.stages[stage] for s in starts if stage in s.stages))
        for stage in sorted(stages, key=lambda stage: stages[stage])
    ]
    rows.append(("announced as ready", statistics.median(start.announced for start in starts)))
    rows.append(("first completion answered", statistics.median(s.answered for s in starts)))
    return table(("stage", "s after the command"), rows)


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
    benchmark_parser(__doc__).parse_args()
    print(f"{surroundings()}\n\n{report()}")
