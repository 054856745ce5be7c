"""The time of a pass on one rank and on two pipeline stages: whole, and in micro-batches.

    model      bench/harness/small_llama.py, two layers a stage; one thread a rank
    prompts    one prompt without a cached prefix
    decodes    so many requests, a token each, with a context of 64

    stages     whole    0 - | - 1        one stage after the other
               pieces   0 0 0 0 -        M micro-batches are at best 2M / (M + 1) times as fast:
                        - 1 1 1 1        with four, five turns of an eighth each

All take turns, and the table has the minimum of each. `beside another` is one rank while another
process does the same, which shows what a second core is worth on this machine at this time; `at
best` follows from it for the ratio of whole to pieces. `busy` is the share of the wall time in
which the leading rank, which has half of the layers, does not wait for the other stage: 1/2
without overlap, M / (M + 1) at best.

    python -m bench.ranks.pipeline_parallel [--prompts 256 1024] [--decodes 64] [--turns 5]
"""

from __future__ import annotations

import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import torch
from torch import Tensor

from baton.engine.assemble import assemble_engine
from baton.engine.batch.batch import Chunk
from baton.engine.batch.micro_batches import micro_batches
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.mesh.mesh import Mesh
from baton.engine.mesh.ranks import RankGroup
from baton.engine.passes.runner import Runner
from baton.engine.ranks.pipeline import PIECES_PER_STAGE
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.harness.small_llama import BLOCK_SIZE, OPTIONS, model_folder, prompt_of
from bench.ranks.loopback import runner_on_ranks

STAGES = Mesh(pipeline=2)
WHOLE, PIECES = 1 << 20, 16
"""The least tokens of a micro-batch."""
CONTEXT_LEN = 64


@dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    waited_s: float
    """Seconds of it spent waiting for the other stage."""

    @property
    def busy(self) -> float:
        return 1 - self.waited_s / self.wall_s


class Waiting:
    """Sums up how long this process has waited for messages of other ranks."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def watch(self) -> None:
        """Start counting."""
        receive = RankGroup.receive_

        def timed(group: RankGroup, x: Tensor, source: int) -> Tensor:
            started = time.perf_counter()
            found = receive(group, x, source)
            self.seconds += time.perf_counter() - started
            return found

        setattr(RankGroup, RankGroup.receive_.__name__, timed)


def decodes_of(num_requests: int) -> list[Chunk]:
    each = CONTEXT_LEN // BLOCK_SIZE + 1
    return [
        Chunk([7 * row], CONTEXT_LEN, range(row * each, (row + 1) * each), 1)
        for row in range(num_requests)
    ]


def engine_config(passes: Sequence[Sequence[Chunk]], least_tokens: int) -> EngineConfig:
    num_blocks = 1 + max(max(chunk.blocks) for chunks in passes for chunk in chunks)
    num_tokens = max(sum(len(chunk.tokens) for chunk in chunks) for chunks in passes)
    return EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=num_blocks),
        scheduler=SchedulerConfig(max_batch_tokens=num_tokens, micro_batch_tokens=least_tokens),
    )


def time_pass(runner: Runner, chunks: Sequence[Chunk], waiting: Waiting) -> Took:
    started, waited = time.perf_counter(), waiting.seconds
    runner.forward(chunks)
    return Took(time.perf_counter() - started, waiting.seconds - waited)


@dataclass(frozen=True, slots=True)
class Bench:
    alone: Runner
    whole: Runner
    pieces: Runner
    rival: Connection
    """A connection to a process that computes each pass it receives, and answers when done."""
    waiting: Waiting

    def row(self, what: str, chunks: Sequence[Chunk], turns: int) -> list[str | float]:
        found: list[list[Took]] = [[], [], [], []]
        for _ in range(turns + 1):
            for runner, taken in zip((self.alone, self.whole, self.pieces), found, strict=False):
                taken.append(time_pass(runner, chunks, self.waiting))
            found[-1].append(self._beside_another(chunks))
        one, whole, cut, beside = (min(took.wall_s for took in each[1:]) for each in found)
        most = PIECES_PER_STAGE * STAGES.pipeline
        count = len(micro_batches(chunks, most=most, least_tokens=PIECES))
        busy = [statistics.median(took.busy for took in taken[1:]) for taken in found[1:3]]
        return [
            what,
            *(1e3 * wall_s for wall_s in (one, beside, whole, cut)),
            f"{whole / cut:.2f}",
            f"{2 * count / (count + 1) * one / beside:.2f}",
            *(f"{share:.2f}" for share in (*busy, count / (count + 1))),
        ]

    def _beside_another(self, chunks: Sequence[Chunk]) -> Took:
        self.rival.send(chunks)
        took = time_pass(self.alone, chunks, self.waiting)
        self.rival.recv()
        return took


@contextmanager
def rival_of(folder: Path, config: EngineConfig) -> Iterator[Connection]:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_compute, args=(folder, config, theirs), daemon=True)
    process.start()
    ours.recv()
    yield ours
    process.kill()


def _compute(folder: Path, config: EngineConfig, passes: Connection) -> None:
    torch.set_num_threads(1)
    runner = assemble_engine(folder, config, **OPTIONS).runner
    while True:
        passes.send(None)
        runner.forward(passes.recv())


def report(prompts: Sequence[int], decodes: Sequence[int], turns: int) -> str:
    passes = {f"prompt of {count}": prompt_of(count) for count in prompts}
    passes |= {f"{count} decodes": decodes_of(count) for count in decodes}
    whole, pieces = (engine_config([*passes.values()], least) for least in (WHOLE, PIECES))
    waiting = Waiting()
    with model_folder() as folder:
        alone = assemble_engine(folder, whole, **OPTIONS).runner
        with (
            rival_of(folder, whole) as rival,
            runner_on_ranks(folder, whole, STAGES, OPTIONS) as at_once,
            runner_on_ranks(folder, pieces, STAGES, OPTIONS) as in_pieces,
        ):
            waiting.watch()
            bench = Bench(alone, at_once, in_pieces, rival, waiting)
            rows = [bench.row(what, each, turns) for what, each in passes.items()]
    head = ["pass", "one rank, ms", "beside another", "stages, whole", "pieces", "whole : pieces"]
    return table([*head, "at best", "busy, whole", "busy, pieces", "at best"], rows)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--prompts", type=int, nargs="*", default=[256, 1024])
    parser.add_argument("--decodes", type=int, nargs="*", default=[64])
    parser.add_argument("--turns", type=int, default=5)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{surroundings()}\n\n{report(arguments.prompts, arguments.decodes, arguments.turns)}")


if __name__ == "__main__":
    main()
