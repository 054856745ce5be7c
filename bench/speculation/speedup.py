"""The speedup of speculative decoding: the same requests with each method and without, in turns.

    rounds   plain, again, suffix, ...     new prompts in each; the first is a warm-up
    turns    a few steps of each engine, in random order, while all of its requests run
    ratio    tokens a second of a method over those of plain decoding, over all rounds, with a 95 %
             confidence interval (bootstrap over blocks of turns); `plain again` shows the noise of
             the machine
    counts   tokens a request gets in a step, draft tokens and verified ones, and the acceptance
             rate by position: they depend on prompts and on how much is drafted, hardly on the
             machine

The loads are described in `bench/speculation/loads.py`. Engines are kept from round to round, with
the step costs they have learnt. Outputs are compared: a token that differs ends the run.
`--cpu-time` counts the CPU seconds of one thread, for shared machines; the engines use the same
clock. `--minutes` divides the time among loads and batches: each has as many rounds as fit, at
least one and at most `--rounds`.

    python -m bench.speculation.speedup [--batches 1 4 16] [--rounds 3] [--minutes 15]
                                        [--only code ...] [--methods suffix ...] [--cpu-time]
"""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from operator import add
from random import Random

import torch
from torch import Tensor

from baton.core.sampling import SamplingParams
from baton.engine.engine import Engine
from baton.engine.request.request import Request
from baton.engine.speculation.draft_tally import DraftCounts
from bench.harness.command_line import benchmark_parser
from bench.harness.report import number, surroundings, table
from bench.harness.small_llama import model_folder
from bench.speculation.loads import NUM_NEW, KnowingDrafter, Load, engine_of, loads
from bench.speculation.run import NO_COUNTS, Run, combined

PLAIN, AGAIN = "plain", "plain again"
BATCHES = (1, 4, 16, 32, 64)
NUM_DRAWS = 1000
HEADER = (
    "load, method", "batch", "plain, tokens/s", "times that", "95 %", "tokens a step",
    "drafted", "verified", "right of each position, %",
)  # fmt: skip


@dataclass(slots=True)
class Measured:
    """The results of one method and of plain decoding, over all rounds."""

    blocks: list[tuple[int, float, int, float]] = field(default_factory=list)
    """Tokens and seconds of the method and of plain decoding in the same turns; zeros where one of
    them had ended."""
    num_tokens: int = 0
    num_steps: int = 0
    num_outputs: int = 0
    """Tokens of all complete answers."""
    drafts: DraftCounts = NO_COUNTS

    def add(self, own: Run, plain: Run) -> None:
        ours, theirs = own.blocks(), plain.blocks()
        length = max(len(ours), len(theirs))
        for at in range(length):
            tokens, seconds = ours[at] if at < len(ours) else (0, 0.0)
            plain_tokens, plain_seconds = theirs[at] if at < len(theirs) else (0, 0.0)
            self.blocks.append((tokens, seconds, plain_tokens, plain_seconds))
        self.num_tokens += sum(tokens for tokens, _ in ours)
        self.num_steps += own.num_steps
        self.num_outputs += sum(len(request.output) for request in own.requests)
        self.drafts = combined(self.drafts, own.drafts, add)

    def counts(self) -> list[str | float]:
        """Draft and verified tokens a request and step, and the acceptance rate by position."""
        num_passes = self.num_outputs - sum(self.drafts.num_accepted_at)
        verified_at, accepted_at = self.drafts.num_verified_at, self.drafts.num_accepted_at
        shares = [
            f"{100 * accepted_at[at] / num:.0f}" if at < len(accepted_at) else "0"
            for at, num in enumerate(verified_at)
            if num
        ]
        return [
            self.drafts.num_proposed / num_passes, sum(verified_at) / num_passes, " ".join(shares),
        ]  # fmt: skip

    def ratio(self) -> float:
        return float(_ratios(self._table().sum(0, keepdim=True))[0])

    def interval(self) -> tuple[float, float]:
        """The 95 % confidence interval of the ratio."""
        blocks = self._table()
        draws = torch.randint(
            len(blocks), (NUM_DRAWS, len(blocks)), generator=torch.Generator().manual_seed(0)
        )
        ratios = _ratios(blocks[draws].sum(1))
        low, high = torch.quantile(ratios[ratios.isfinite()], torch.tensor([0.025, 0.975])).tolist()
        return low, high

    def plain_rate(self) -> float:
        _, _, tokens, seconds = self._table().sum(0).tolist()
        return float(tokens / seconds)

    def _table(self) -> Tensor:
        return torch.tensor(self.blocks, dtype=torch.float32)


def _ratios(sums: Tensor) -> Tensor:
    """[n, 4] -> [n]"""
    tokens, seconds, plain_tokens, plain_seconds = sums.unbind(1)
    return (tokens / seconds) / (plain_tokens / plain_seconds)


def measure(
    load: Load, batch: int, num_rounds: int, ends_at: float = math.inf
) -> Iterator[list[str | float]]:
    """A row a method, and one for the difference between two plain runs."""
    plain = engine_of(load.model)
    engines = {PLAIN: plain, AGAIN: engine_of(load.model)}
    engines |= {name: make() for name, make in load.methods.items()}
    measured = {name: Measured() for name in engines}
    random, turns = Random(batch), Random(batch)  # prompts do not depend on how long others took
    for round_ in range(num_rounds + 1):
        if round_ > 1 and time.monotonic() > ends_at:
            break
        runs = _round(load, engines, load.prompts(random, batch), round_, random, turns)
        for name, run in runs.items():
            if round_:
                measured[name].add(run, runs[PLAIN])
    for name in (AGAIN, *load.methods):
        found = measured[name]
        low, high = found.interval()
        yield [
            f"{load.name}, {name}", str(batch), found.plain_rate(), found.ratio(),
            f"{number(low)} to {number(high)}", found.num_tokens / batch / found.num_steps,
            *found.counts(),
        ]  # fmt: skip


def _round(
    load: Load,
    engines: Mapping[str, Engine],
    prompts: Sequence[list[int]],
    round_: int,
    random: Random,
    turns: Random,
) -> dict[str, Run]:
    if load.edits is not None:
        for engine in engines.values():
            Run(engine, _requests(load, round_, prompts, "before")).finish()
        prompts = [load.edits(random, prompt) for prompt in prompts]
    known = Run(engines[PLAIN], _requests(load, round_, prompts))
    while known.is_full:
        known.go_on()
    expected = known.finish()
    for engine in engines.values():
        drafter = engine.speculation.drafter if engine.speculation else None
        if isinstance(drafter, KnowingDrafter):
            drafter.answers = expected
            drafter.step_s = sum(seconds for _, seconds in known.turns) / known.num_steps
    runs = {name: Run(engine, _requests(load, round_, prompts)) for name, engine in engines.items()}
    _take_turns(list(runs.values()), turns)
    for name, run in runs.items():
        if run.finish() != expected:
            sys.exit(f"{load.name}, {name}: other tokens than without drafts")
    return runs


def _take_turns(runs: Sequence[Run], random: Random) -> None:
    """Let engines take turns, since other processes slow the machine down for seconds at a time."""
    going = list(runs)
    while going:
        random.shuffle(going)
        for each in going:
            each.go_on()
        going = [each for each in going if each.is_full]


def _requests(
    load: Load, round_: int, prompts: Sequence[Sequence[int]], name: str = ""
) -> list[Request]:
    return [
        Request(
            f"{name}{round_}.{i}",
            prompt,
            sampling=SamplingParams(
                temperature=load.temperature,
                top_p=0.9,
                seed=1000 * round_ + i,
                max_tokens=NUM_NEW,
                ignore_eos=True,
            ),
        )
        for i, prompt in enumerate(prompts)
    ]


def rows_of(
    chosen: Sequence[Load], batches: Sequence[int], num_rounds: int, minutes: float
) -> Iterator[list[str | float]]:
    """Rows of all loads and batches, which share the remaining time equally."""
    ends_at, num_left = time.monotonic() + 60 * minutes, len(chosen) * len(batches)
    for load in chosen:
        for batch in batches:
            share = (ends_at - time.monotonic()) / num_left
            num_left -= 1
            for row in measure(load, batch, num_rounds, time.monotonic() + share):
                print(*row, file=sys.stderr, flush=True)
                yield row


def report(*, is_quick: bool = False) -> str:
    """The default loads: all but `always`."""
    with ExitStack() as stack:
        chosen = [
            load
            for load in loads(stack.enter_context(model_folder()))
            if not load.name.startswith("always")
        ]
        batches, minutes = ((1, 4), 2.0) if is_quick else (BATCHES, 15.0)
        return table(HEADER, rows_of(chosen, batches, 1 if is_quick else 20, minutes))


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--batches", type=int, nargs="*", default=BATCHES)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--minutes", type=float, default=math.inf)
    parser.add_argument("--only", nargs="*", default=[])
    parser.add_argument("--methods", nargs="*", default=[])
    parser.add_argument("--cpu-time", action="store_true")
    options = parser.parse_args()
    if options.cpu_time:
        torch.set_num_threads(1)
    with ExitStack() as stack:
        chosen = []
        for load in loads(stack.enter_context(model_folder())):
            if not options.only or any(load.name.startswith(name) for name in options.only):
                kept = {n: m for n, m in load.methods.items() if n in (options.methods or (n,))}
                chosen.append(replace(load, methods=kept))
        rows = list(rows_of(chosen, options.batches, options.rounds, options.minutes))
    print(table(HEADER, rows), surroundings(), sep="\n\n")


if __name__ == "__main__":
    main()
