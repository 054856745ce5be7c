"""A decode step on a CPU by its parts, on one thread and on all, and where threads spend time.

    parts     the time of each part on one thread and on all, beside its lower bound on one thread:
              FLOPs and bytes at the rates of one thread, measured in the same run
    threads   threads x step time = computing + runnable but without a core, because of other
              processes + asleep, waiting for each other (short waits spin, which counts as
              computing)

Steps on one thread and on all take turns. Weights are random, with the shape of Qwen3-0.6B in
bfloat16.

    python -m bench.engine.step_breakdown [--requests 32 16 1] [--context 192]
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from baton.platform.instruments.ceilings import Ceilings, measure_ceilings
from baton.platform.instruments.loaded_engine import LoadedEngine
from baton.platform.instruments.pass_cost import Chunk, Work, pass_work
from baton.platform.instruments.step_watch import StepTime, StepWatch, watching
from baton.platform.models.model_shape import Part
from bench.engine.growth import load
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table

REQUESTS, CONTEXT = (32, 16, 1), 192
WARM_UP_STEPS, TURNS = 2, 12
TASKS = Path("/proc/self/task")


@dataclass(frozen=True, slots=True)
class Had:
    """Seconds of all threads of this process together, by state."""

    computed_s: float
    kept_s: float
    """Runnable, while another process had the core."""

    def __sub__(self, other: Had) -> Had:
        return Had(self.computed_s - other.computed_s, self.kept_s - other.kept_s)


@dataclass(frozen=True, slots=True)
class Step:
    took: StepTime
    had: Had


def threads_had() -> Had:
    """Read the times of all threads. Raises OSError if the kernel has no scheduling statistics."""
    times = [(task / "schedstat").read_text().split() for task in TASKS.iterdir()]
    return Had(
        sum(int(ran) for ran, *_ in times) / 1e9, sum(int(kept) for _, kept, *_ in times) / 1e9
    )


def in_turns(
    watch: StepWatch, threads: Sequence[int], turns: int, had: Callable[[], Had]
) -> dict[int, list[Step]]:
    """Steps by number of threads, which take turns."""
    found: dict[int, list[Step]] = {count: [] for count in threads}
    for turn in range(-WARM_UP_STEPS, turns):
        for count in threads:
            torch.set_num_threads(count)
            before = had()
            took = watch.step()
            if turn >= 0:
                found[count].append(Step(took, had() - before))
    return found


def part_rows(
    steps: dict[int, list[Step]], work: dict[Part, Work], one: Ceilings
) -> list[list[str | float]]:
    """Rows of median milliseconds by part."""
    rows: list[list[str | float]] = []
    for part in steps[1][-1].took.part_s:
        least = work.get(part, Work())
        took = [
            statistics.median(step.took.part_s[part] for step in found) * 1e3
            for found in steps.values()
        ]
        arithmetic, reading = least.flops / one.flops_s, least.num_bytes / one.read_bytes_s
        rows.append([str(part), arithmetic * 1e3, reading * 1e3, *took])
    return rows


def thread_rows(steps: dict[int, list[Step]]) -> list[list[str | float]]:
    rows: list[list[str | float]] = []
    for count, found in steps.items():
        whole = statistics.mean(step.took.step_s for step in found)
        around = statistics.mean(step.took.around_s for step in found)
        computed = statistics.mean(step.had.computed_s for step in found)
        kept = statistics.mean(step.had.kept_s for step in found)
        asleep = max(0.0, count * whole - computed - kept)
        seconds = (whole, around, computed, kept, asleep)
        rows.append([str(count), *(each * 1e3 for each in seconds)])
    return rows


def measure(loaded: LoadedEngine, batch: int, context: int, one: Ceilings) -> str:
    threads = sorted({1, len(os.sched_getaffinity(0))})
    requests = [
        loaded.add_decoding(context, seed=f"{batch}, {index}", max_tokens=4 * TURNS)
        for index in range(batch)
    ]
    with watching(loaded.engine, loaded.loaded.model) as watch:
        steps = in_turns(watch, threads, TURNS, threads_had)
    loaded.drop(requests)
    middle = context + len(threads) * (WARM_UP_STEPS + TURNS // 2)
    work = dict(pass_work(loaded.shape, [Chunk(num_tokens=1, context=middle)] * batch))
    head = ["part, ms", "arithmetic", "reading", *(f"{count} threads" for count in threads)]
    of_threads = ["threads, ms a step", "step", "of it Python", "computed", "kept", "asleep"]
    return (
        f"### {batch} requests at {context}\n\n{table(head, part_rows(steps, work, one))}\n\n"
        f"{table(of_threads, thread_rows(steps))}"
    )


def report(batches: Sequence[int], context: int) -> str:
    loaded = load(max(batches) * (context + 4 * TURNS))
    torch.set_num_threads(1)
    started = time.monotonic()
    one = measure_ceilings(getattr(torch, loaded.loaded.info.dtype))
    said = f"One thread: {one.flops_s / 1e12:.3f} TFLOP/s, reads {one.read_bytes_s / 1e9:.1f} GB/s"
    parts = [measure(loaded, batch, context, one) for batch in batches]
    return "\n\n".join((said, *parts, f"{time.monotonic() - started:.0f} s"))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--requests", nargs="+", type=int, default=REQUESTS)
    parser.add_argument("--context", type=int, default=CONTEXT)
    given = parser.parse_args()
    print(surroundings(), report(given.requests, given.context), sep="\n\n")


if __name__ == "__main__":
    main()
