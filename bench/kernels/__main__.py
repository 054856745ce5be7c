"""Times every CPU kernel, beside its lower bound from memory bandwidth and FLOPs.

    products     bfloat16, int8 and int4 weights, 1 to 512 rows
    greedy       the best of 98,304 tokens without all logits, beside what these take at least
    low_rank     updates by adapters (LoRA) of rank 16, and the products with the weights themselves
    attention    one new token, 32 new tokens after a long prefix, and prompts, by KV dtype; one
                 long context with two threads (in wall time)
    limits       a read of 256 MiB, and torch's matrix product (in int8 for quantised weights), in
                 turns with the kernel. Shares are of the larger of the two bounds

    python -m bench.kernels                        this CPU's kernels
    python -m bench.kernels --kinds best x86-64-v3 vectors       in turns, as BATON_CPU_KERNELS says
    python -m bench.kernels --against ../before    in turns with another tree
    python -m bench.kernels --only attention       cases whose names contain this

A kind that was not compiled here yet is compiled first, which takes a minute.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.kernels.cases import Case, cases

THIS_TREE = Path(__file__).resolve().parents[2]
BEST = "best"
TURNS, SECONDS, QUICK_SECONDS = 2, 1.0, 0.1
OF_READ, OF_PRODUCTS = "a read", "torch.mm"


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """The least seconds of the case, of reading a byte, and of a FLOP of torch's product."""

    took_s: float
    byte_s: float
    flop_s: float

    def better(self, other: Found) -> Found:
        return Found(
            took_s=min(self.took_s, other.took_s),
            byte_s=min(self.byte_s, other.byte_s),
            flop_s=min(self.flop_s, other.flop_s),
        )

    def share(self, case: Case) -> tuple[str, float]:
        read_s, product_s = case.num_bytes * self.byte_s, case.flops * self.flop_s
        limit = OF_READ if read_s > product_s else OF_PRODUCTS
        return limit, max(read_s, product_s) / self.took_s


class Worker:
    """A child process, since a process loads one kind of kernels."""

    def __init__(self, name: str, tree: Path, kind: str) -> None:
        self.name = name
        path = os.pathsep.join((str(tree / "src"), str(THIS_TREE)))
        environment = {**os.environ, "PYTHONPATH": path}
        if kind != BEST:
            environment["BATON_CPU_KERNELS"] = kind
        self._process = subprocess.Popen(
            [sys.executable, "-m", "bench.kernels.worker"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        compiled, order = self._answer()
        self.what = f"{name}: {compiled}{', ' if order else ''}{order}"

    def measure(self, number: int, seconds: float) -> Found:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{number} {seconds}\n")
        self._process.stdin.flush()
        took, byte, flop = self._answer()
        return Found(took_s=float(took), byte_s=float(byte), flop_s=float(flop))

    def end(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> list[str]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name}: its process ended; what it said is above")
        answer: list[str] = json.loads(line)
        return answer


def report(workers: Sequence[Worker], only: Sequence[str], seconds: float) -> str:
    chosen = [
        (number, case)
        for number, case in enumerate(cases())
        if all(word in case.name for word in only)
    ]
    rows = [_row(case, _measure(workers, number, seconds)) for number, case in chosen]
    head = [
        "kernel",
        "its limit",
        *(f"{w.name}, {what}" for w in workers for what in ("ms", "share")),
    ]
    ratio = [f"{workers[0].name} / {workers[-1].name}"] if len(workers) == 2 else []
    said = "; ".join(worker.what for worker in workers)
    return f"{surroundings()}\n\n{said}\n\n" + table([*head, *ratio], rows)


def _measure(workers: Sequence[Worker], number: int, seconds: float) -> list[Found]:
    found: list[Found] = []
    for turn in range(TURNS):
        for index, worker in enumerate(workers):
            now = worker.measure(number, seconds / TURNS)
            if turn:
                found[index] = found[index].better(now)
            else:
                found.append(now)
    return found


def _row(case: Case, found: Sequence[Found]) -> list[str | float]:
    cells: list[str | float] = [case.name, found[0].share(case)[0]]
    for each in found:
        cells += [each.took_s * 1e3, f"{each.share(case)[1]:.2f}"]
    if len(found) == 2:
        cells.append(f"{found[0].took_s / found[1].took_s:.2f}")
    print(" ".join(map(str, cells)), file=sys.stderr, flush=True)
    return cells


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--kinds", nargs="+", default=[BEST])
    parser.add_argument("--against", type=Path, help="another tree, measured beside this one")
    parser.add_argument("--only", nargs="+", default=[], help="words of a name, all of them")
    parser.add_argument("--quick", action="store_true", help="to see that it works")
    given = parser.parse_args()
    trees = [("", THIS_TREE)]
    if given.against is not None:
        trees = [("before ", given.against.resolve()), ("now ", THIS_TREE)]
    workers = [Worker(f"{name}{kind}", tree, kind) for kind in given.kinds for name, tree in trees]
    try:
        seconds = QUICK_SECONDS if given.quick else SECONDS
        print(report(workers, given.only, seconds))
    finally:
        for worker in workers:
            worker.end()


if __name__ == "__main__":
    main()
