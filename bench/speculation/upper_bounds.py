"""Upper bounds for the speedup of speculative decoding, by what rows cost on this machine now.

    phases      the parts of a step that verifies N draft tokens a request: drafting (free here:
                drafts are given), choosing drafts, scheduling, building the batch, the forward
                pass, the output head, sampling, and updating the drafter; median microseconds,
                engines take turns step by step
    speedup, all accepted   if every draft token were accepted and drafting took no time: no method
                            can be faster while steps take what they do
    acceptance needed       the acceptance rate that gives the target speedup, 2.0 at 1 request and
                            1.4 at 16, if it is the same at each position
    speedup, bare rows      the same as the first if a verifying step cost nothing beyond a plain
                            one but its forward pass and its output head
    arithmetic              the same as the first if a row took no longer than one of 128 does in
                            the model's matrix products, and nothing else took any time: no code can
                            be faster without cheaper products

All drafts that are timed are wrong, so that engines stay in step; accepting a token costs a
microsecond or two more.

    python -m bench.speculation.upper_bounds [--batches 1 16] [--steps 60] [--cpu-time]
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from random import Random
from statistics import median

import torch
from tokenizers import Tokenizer

from baton.engine.checkpoint.load import LoadedModel, load_model
from baton.engine.engine import Engine
from baton.platform.models.model_folder import find_model
from bench.engine.step_overhead import TimedRunner, matmul_us
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.speculation.loads import MAX_TOKENS, code_prompts
from bench.speculation.token_trees import wrong_engine

AIMS = {1: 2.0, 16: 1.4}
"""Target speedups over plain decoding, by number of requests."""
MANY_ROWS = 128
WARM_STEPS = 8
PHASES = ("choose", "plan", "lay out", "pass", "head", "draw", "learn")

Phases = Sequence[float]
"""Microseconds of each phase, as in `PHASES`."""


class Timed:
    """An engine that verifies so many draft tokens a request, and the times of its steps."""

    def __init__(self, model: LoadedModel, prompts: Sequence[Sequence[int]], num: int) -> None:
        self.num_prompts = len(prompts)
        self._num_drafted = num
        self._engine: Engine = wrong_engine(model, prompts, num)
        self._runner = TimedRunner(self._engine.runner, self._engine.clock)
        self._engine.runner = self._runner
        self._steps: list[Phases] = []

    def step(self, *, counts: bool) -> None:
        runner, clock = self._runner, self._engine.clock
        runner.pass_s = runner.head_s = 0.0
        started = clock()
        report = self._engine.step()
        whole_us = (clock() - started) * 1e6
        if not counts:
            return
        assert report.num_drafted == self._num_drafted * self.num_prompts
        pass_us, head_us = runner.pass_s * 1e6, runner.head_s * 1e6
        told = report.draft_ms, report.schedule_ms, report.forward_ms, report.sample_ms
        draft, plan, forward, draw = (ms * 1e3 for ms in told)
        self._steps.append(
            (
                *(draft, plan, forward - pass_us - head_us, pass_us, head_us, draw),
                whole_us - draft - plan - forward - draw,
            )
        )

    def phases(self) -> Phases:
        return [median(each) for each in zip(*self._steps, strict=True)]


def timed(
    model: LoadedModel, prompts: Sequence[Sequence[int]], num_steps: int
) -> dict[int, Phases]:
    """Median times of the phases, by draft tokens a request."""
    engines = {num: Timed(model, prompts, num) for num in range(MAX_TOKENS + 1)}
    # In turns, since other processes slow the machine down for seconds at a time.
    for step in range(num_steps + WARM_STEPS):
        for engine in engines.values():
            engine.step(counts=step >= WARM_STEPS)
    return {num: engine.phases() for num, engine in engines.items()}


def needed(gain: float, num_drafted: int) -> float | None:
    """The acceptance rate a for which 1 + a + a^2 + ... is `gain`; None if a = 1 is too little."""
    if gain > 1 + num_drafted:
        return None
    low, high = 0.0, 1.0
    for _ in range(40):
        share = (low + high) / 2
        enough = sum(share**power for power in range(num_drafted + 1)) >= gain
        low, high = (low, share) if enough else (share, high)
    return high


def limits(by_num: dict[int, Phases], batch: int, row_us: float) -> Iterator[list[str | float]]:
    plain = by_num[0]
    plain_us, rest_us = sum(plain), sum(plain) - _rows_us(plain)
    aim = AIMS.get(batch)
    for num, phases in by_num.items():
        if not num:
            continue
        step_us, tokens = sum(phases), 1 + num
        share = None if aim is None else needed(aim * step_us / plain_us, num)
        yield [
            f"{batch}, {num}",
            step_us / plain_us,
            tokens * plain_us / step_us,
            "none" if share is None else f"{share:.2f}",
            tokens * plain_us / (rest_us + _rows_us(phases)),
            tokens * plain_us / max(plain_us, batch * tokens * row_us),
        ]


def _rows_us(phases: Phases) -> float:
    return phases[PHASES.index("pass")] + phases[PHASES.index("head")]


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 16])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
    demo = load_model(find_model("demo"))
    tokenizer = Tokenizer.from_file(str(find_model("demo") / "tokenizer.json"))
    prompts = code_prompts(tokenizer)(Random(0), max(options.batches))
    clock = time.process_time if options.cpu_time else time.perf_counter
    row_us = matmul_us(demo, MANY_ROWS, clock, repeats=10) / MANY_ROWS
    taken: list[list[str | float]] = []
    most: list[list[str | float]] = []
    for batch in options.batches:
        by_num = timed(demo, prompts[:batch], options.steps)
        taken += [[f"{batch}, {num}", *us, sum(us)] for num, us in by_num.items()]
        most += limits(by_num, batch, row_us)
    print(table(("requests, draft tokens each", *PHASES, "step, us"), taken), end="\n\n")
    header = (
        "requests, draft tokens each",
        "step time / plain step",
        "speedup, all accepted",
        "acceptance needed",
        "speedup, bare rows",
        "arithmetic",
    )
    print(table(header, most), end="\n\n")
    print(
        f"a row of {MANY_ROWS} in the model's products: {row_us:.1f} us", surroundings(), sep="\n\n"
    )


if __name__ == "__main__":
    main()
