"""`baton simulate`: reads the traces, simulates every case, shows the results."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import isfinite
from pathlib import Path
from typing import Any, TypeVar

import msgspec
from rich.console import Console

from baton.core.errors import InvalidConfig
from baton.platform.cli.terminal.output_files import check_plots, check_writable
from baton.platform.cli.terminal.progress import counting_bar
from baton.platform.simulator.experiment import Experiment, Row, play, play_all
from baton.platform.simulator.plots import draw
from baton.platform.simulator.report import show, tree
from baton.platform.simulator.setup import Setup
from baton.platform.traces.reader import read_trace
from baton.platform.traces.trace import Trace
from baton.router.defaults import DEFAULT_POLICY
from baton.router.policies.by_name import ABLATIONS, POLICIES

LOADS = (0.7, 1.0, 1.3)
FILE_WIDTH = 100
"""Width, in characters, of a table that is not written to a terminal."""
C = TypeVar("C")
GROUPS = {"all": tuple(POLICIES), "ablation": (DEFAULT_POLICY, *ABLATIONS)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    traces: Sequence[Path]
    policies: Sequence[str]
    loads: Sequence[float]
    prefill_rate: float | None
    num_seeds: int
    setup: Setup
    num_jobs: int
    json_file: Path | None
    plot_file: Path | None


Played = tuple[list[Row], dict[str, Any]]
"""Rows, and their JSON document."""


def run(job: Job, play_job: Callable[[Job, Console], Played]) -> None:
    """Raises InvalidConfig that names the option, or BatonError."""
    if job.plot_file is not None:
        check_plots("--plot")
        check_writable(job.plot_file, "--plot")
    if job.json_file is not None:
        check_writable(job.json_file, "--json")
    width = None if sys.stdout.isatty() else FILE_WIDTH
    console = Console(highlight=False, width=width)
    rows, found = play_job(job, console)
    if job.json_file is not None:
        job.json_file.write_bytes(msgspec.json.format(msgspec.json.encode(found)) + b"\n")
    if job.plot_file is not None:
        draw(rows, job.plot_file)


def play_pool(job: Job, console: Console) -> Played:
    """Replicas that compute prompts at a constant rate."""
    experiment = Experiment(
        policies=policies_of(job.policies),
        loads=loads_of(job) or (LOADS if job.prefill_rate is None else ()),
        traces=[read(file) for file in job.traces],
        num_seeds=job.num_seeds,
        setup=job.setup,
    )
    rows = all_rows(experiment.cases(), job, play)
    show(console, experiment, rows)
    return rows, tree(experiment, rows)


def all_rows(cases: Sequence[C], job: Job, play_one: Callable[[C], Row]) -> list[Row]:
    """Play all cases, and say how far it has come whenever all seeds of a policy are played."""
    rows: list[Row] = []
    with counting_bar("simulating", len(cases)) as advance:
        for row in play_all(cases, job.num_jobs, play_one):
            rows.append(row)
            is_last_seed = len(rows) % job.num_seeds == 0
            advance(f"{_described(row)} ({len(rows)} of {len(cases)} runs)" if is_last_seed else "")
    return rows


def _described(row: Row) -> str:
    load = "" if row.load is None else f" at load {row.load:g}"
    return f"{row.trace}{load}, {row.policy}"


def policies_of(names: Sequence[str]) -> tuple[str, ...]:
    """Policies without repetitions, in the given order."""
    known = {**POLICIES, **ABLATIONS}
    for name in names:
        if name not in known and name not in GROUPS:
            raise InvalidConfig(f"--policy {name}: give one of {', '.join((*known, *GROUPS))}")
    return tuple(dict.fromkeys(one for name in names for one in GROUPS.get(name, (name,))))


def loads_of(job: Job) -> Sequence[float]:
    rate = job.prefill_rate
    if rate is not None and job.loads:
        raise InvalidConfig("--load and --prefill-rate: one follows from the other; give one")
    if rate is not None and not (isfinite(rate) and rate > 0):
        raise InvalidConfig(f"--prefill-rate {rate:g}: give tokens a second, more than 0")
    for load in job.loads:
        if not (isfinite(load) and load > 0):
            raise InvalidConfig(
                f"--load {load:g}: give a share of all replicas' time, more than 0, such as 0.7"
            )
    return tuple(dict.fromkeys(job.loads))


def read(file: Path) -> Trace:
    try:
        return read_trace(file)
    except OSError as error:
        raise InvalidConfig(
            f"TRACE {file}: {error.strerror}; give a trace of Mooncake, Azure or sessions"
        ) from None
