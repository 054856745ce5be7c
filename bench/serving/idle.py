"""CPU time of an idle deployment, by process and thread.

In the same cluster runs an empty Serve application. Its actor costs what Ray and Serve cost anyway;
Baton's share is what its actors use beyond that, and all that its other processes use. Threads are
grouped by their kernel names; Python's threads have the name of their process.

    python -m bench.serving.idle                                  this tree
    python -m bench.serving.idle --against ../before --turns 3    in turns with another one

Linux only: thread times are those of /proc/PID/task/TID/schedstat.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil

from bench.harness.command_line import benchmark_parser
from bench.harness.live_deployment import LiveDeployment, user_environment
from bench.harness.report import surroundings, table
from bench.serving.empty_application import ANSWERED
from bench.serving.startup import BATON_PROCESSES, CONFIG, SETTLE_S, Kind, by_kind, command_of

THIS_TREE = Path(__file__).resolve().parents[2]
EMPTY = ("empty", "actor")
EMPTY_PROCESS = "ray::ServeReplica:empty:Empty"
ACTORS = [("Baton", name) for name in BATON_PROCESSES if name != "command"]
OTHERS = [("Baton", "driver"), ("Baton", "command")]
MIN_PERCENT = 0.02
"""Percent of a core; threads below it count only in the sum of their process."""

Threads = Mapping[tuple[Kind, str], float]
"""Percent of a core by process and thread."""


def measure(trees: Sequence[Path], num_turns: int, seconds: float) -> list[list[Threads]]:
    """Results by source tree; the trees take turns."""
    found: list[list[Threads]] = [[] for _ in trees]
    for _ in range(num_turns):
        for tree, threads in zip(trees, found, strict=True):
            threads.append(_watch(tree, seconds))
    return found


def _watch(tree: Path, seconds: float) -> Threads:
    with _imported_from(tree), LiveDeployment(CONFIG) as deployment:
        deployment.wait()
        with _empty_actor(_address(deployment.processes())):
            time.sleep(SETTLE_S)
            kinds = by_kind(deployment.processes(), {"empty": {EMPTY[1]: EMPTY_PROCESS}})
            before = _spent(kinds)
            began_s = time.perf_counter()
            time.sleep(seconds)
            after = _spent(kinds)
            per_percent = (time.perf_counter() - began_s) * 1e7
    return {key: (ns - before[key]) / per_percent for key, ns in after.items()}


@contextmanager
def _imported_from(tree: Path) -> Iterator[None]:
    before = os.environ.get("PYTHONPATH")
    os.environ["PYTHONPATH"] = f"{tree / 'src'}{os.pathsep}{tree}"
    try:
        yield
    finally:
        del os.environ["PYTHONPATH"]
        if before is not None:
            os.environ["PYTHONPATH"] = before


def _address(processes: Sequence[psutil.Process]) -> str:
    """The address of this run's own cluster, not of another one on this machine."""
    for process in processes:
        for word in command_of(process).split(" "):
            if word.startswith("--gcs-address="):
                return word.partition("=")[2]
    raise RuntimeError("no raylet among the deployment's processes")


@contextmanager
def _empty_actor(address: str) -> Iterator[None]:
    with subprocess.Popen(
        [sys.executable, "-m", "bench.serving.empty_application", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=user_environment(),
    ) as process:
        assert process.stdout is not None and process.stdin is not None
        if not any(ANSWERED in line for line in process.stdout):
            raise RuntimeError(f"the empty application has ended: {process.returncode}")
        yield
        process.stdin.close()


def _spent(kinds: Mapping[Kind, Sequence[psutil.Process]]) -> Counter[tuple[Kind, str]]:
    """Nanoseconds of CPU time so far."""
    spent = Counter[tuple[Kind, str]]()
    for kind, processes in kinds.items():
        for process in processes:
            for task in Path(f"/proc/{process.pid}/task").glob("*"):
                with suppress(OSError):  # already ended
                    name = (task / "comm").read_text().strip()
                    if name.startswith(("ray::", "python")):
                        name = "main" if task.name == str(process.pid) else "Python's"
                    spent[kind, name] += int((task / "schedstat").read_text().split()[0])
    return spent


def report(names: Sequence[str], found: Sequence[Sequence[Threads]]) -> str:
    return "\n\n".join(
        (
            "### By process, % of a core",
            table(("process", *names), _process_rows(found)),
            "### By thread",
            table(("process: threads", *names), _thread_rows(found)),
        )
    )


def _process_rows(found: Sequence[Sequence[Threads]]) -> Iterator[tuple[str | float, ...]]:
    def row(name: str, kinds: Sequence[Kind], num_empty: int = 0) -> tuple[str | float, ...]:
        wanted = set(kinds)
        return name, *(
            statistics.median(
                sum(share for (kind, _), share in threads.items() if kind in wanted)
                - num_empty * sum(s for (kind, _), s in threads.items() if kind == EMPTY)
                for threads in turns
            )
            for turns in found
        )

    for kind in (*ACTORS, *OTHERS, EMPTY):
        yield row(": ".join(kind), [kind])
    yield row("**ours**", ACTORS + OTHERS)
    yield row(f"**ours, above {len(ACTORS)} empty actors**", ACTORS + OTHERS, len(ACTORS))
    rays = sorted({kind for kind, _ in found[0][0] if kind[0] == "Ray"})
    for kind in rays:
        yield row(": ".join(kind), [kind])
    yield row("**Ray's**", rays)


def _thread_rows(found: Sequence[Sequence[Threads]]) -> Iterator[tuple[str | float, ...]]:
    keys = {key for turns in found for threads in turns for key in threads}
    for kind in (*ACTORS, *OTHERS, EMPTY):
        rows = [
            (name, [statistics.median(t.get((kind, name), 0.0) for t in turns) for turns in found])
            for name in {name for of, name in keys if of == kind}
        ]
        for name, shares in sorted(rows, key=lambda row: -max(row[1])):
            if max(shares) >= MIN_PERCENT:
                yield f"{kind[1]}: {name}", *shares


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--against", type=Path, help="another tree, measured before this one")
    parser.add_argument("--turns", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    trees, names = [THIS_TREE], ["this tree"]
    if given.against is not None:
        trees, names = [given.against.resolve(), THIS_TREE], ["before", "after"]
    found = measure(trees, given.turns, given.seconds)
    print(f"{surroundings()}, {given.turns} turns\n\n{report(names, found)}")


if __name__ == "__main__":
    main()
