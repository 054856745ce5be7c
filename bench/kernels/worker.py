"""The process that times one kind of kernels, one case at a time.

    <- a line: the index of a case, and for how many seconds to time it
    -> JSON: the least seconds of the case, of reading a byte, and of a FLOP of torch's product

Started by bench.kernels, with BATON_CPU_KERNELS and the source tree set by the environment.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable

import torch

from baton.kernels.cpu.library import library, order_of_sums
from baton.kernels.cpu.memory_reading import word_sum
from bench.kernels.cases import MM, Case, cases, limits, probe

LEAST_TIMES = 3


def clock_of(num_threads: int) -> Callable[[], float]:
    """CPU time with one thread, which other processes disturb less; wall time with several."""
    return time.thread_time if num_threads == 1 else time.perf_counter


def main() -> None:
    words, products = probe(), limits()
    made: tuple[Case, Callable[[], object]] | None = None
    torch.set_num_threads(1)
    compiled = "compiled" if library() is not None else "torch"
    print(json.dumps([compiled, order_of_sums(is_bfloat16=True)]), flush=True)
    every = list(cases())
    with torch.inference_mode():
        for line in sys.stdin:
            number, seconds = line.split()
            case = every[int(number)]
            if made is None or made[0] is not case:
                torch.set_num_threads(1)
                made = case, case.make()
            torch.set_num_threads(case.num_threads)
            found = best(
                (made[1], lambda: word_sum(words), products[case.arithmetic]),
                clock_of(case.num_threads),
                float(seconds),
            )
            flops = 2.0 * MM[0] * MM[1] * MM[2]
            print(json.dumps([found[0], found[1] / words.nbytes, found[2] / flops]), flush=True)


def best(
    works: tuple[Callable[[], object], ...], clock: Callable[[], float], least_s: float
) -> list[float]:
    """The least time of each function; they take turns."""
    taken: list[list[float]] = [[] for _ in works]
    works[0]()
    ends_at = time.perf_counter() + least_s
    while len(taken[0]) < LEAST_TIMES or time.perf_counter() < ends_at:
        for each, work in zip(taken, works, strict=True):
            started = clock()
            work()
            each.append(clock() - started)
    return [min(each) for each in taken]


if __name__ == "__main__":
    main()
