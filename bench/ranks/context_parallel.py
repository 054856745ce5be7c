"""Times a long prompt on one rank, and on two context-parallel ranks, with one thread each.

    model     bench/harness/small_llama.py
    pass      the prefill of one prompt without a cached prefix, and one output token
    at best   half the computation plus the exchange, if no rank ever waits for the other

Both take turns; the table has the minimum of each. Beside the wall time, which other processes
lengthen, is the CPU time of the leading rank, which does not include waiting.

    python -m bench.ranks.context_parallel [--tokens 64 512 2048] [--turns 3]
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from baton.engine.assemble import assemble_engine
from baton.engine.batch.batch import Chunk
from baton.engine.batch.token_shares import share_tokens
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.mesh.mesh import Mesh
from baton.engine.passes.runner import Runner
from bench.harness.command_line import benchmark_parser
from bench.harness.report import surroundings, table
from bench.harness.small_llama import BLOCK_SIZE, OPTIONS, model_folder, prompt_of
from bench.ranks.loopback import runner_on_ranks

NUM_RANKS = 2


@dataclass(frozen=True, slots=True)
class Took:
    wall_s: float
    own_s: float
    """CPU seconds of the leading rank's process."""


def engine_config(num_tokens: int) -> EngineConfig:
    return EngineConfig(
        cache=CacheConfig(block_size=BLOCK_SIZE, num_blocks=-(-num_tokens // BLOCK_SIZE)),
        scheduler=SchedulerConfig(max_batch_tokens=num_tokens),
    )


def time_pass(runner: Runner, chunks: Sequence[Chunk]) -> Took:
    wall, own = time.perf_counter(), time.process_time()
    runner.forward(chunks)
    return Took(time.perf_counter() - wall, time.process_time() - own)


def exchanged_bytes(chunks: Sequence[Chunk], block_bytes: int) -> int:
    """Bytes that the leading rank sends in a pass."""
    shares = share_tokens(chunks, NUM_RANKS, BLOCK_SIZE)
    assert shares is not None
    most = max(sum(len(p.blocks_of(chunks, BLOCK_SIZE)) for p in share) for share in shares)
    return most * block_bytes * (NUM_RANKS - 1)


def row(alone: Runner, together: Runner, num_tokens: int, turns: int) -> list[str | float]:
    chunks = prompt_of(num_tokens)
    found: dict[Runner, list[Took]] = {alone: [], together: []}
    for _ in range(turns + 1):
        for runner, taken in found.items():
            taken.append(time_pass(runner, chunks))
    walls = [min(took.wall_s for took in taken[1:]) for taken in found.values()]
    owns = [min(took.own_s for took in taken[1:]) for taken in found.values()]
    return [
        str(num_tokens),
        *(f"{seconds:.2f}" for seconds in walls),
        f"{walls[0] / walls[1]:.2f}",
        *(f"{seconds:.2f}" for seconds in owns),
        f"{owns[0] / owns[1]:.2f}",
        exchanged_bytes(chunks, alone.cache.layout.block_bytes) / 1e6,
    ]


def report(num_tokens: Sequence[int], turns: int) -> str:
    config = engine_config(max(num_tokens))
    with model_folder() as folder:
        alone = assemble_engine(folder, config, **OPTIONS).runner
        with runner_on_ranks(folder, config, Mesh(context=NUM_RANKS), OPTIONS) as together:
            rows = [row(alone, together, count, turns) for count in num_tokens]
    head = ["tokens", "one rank, s", "two, s", "ratio", "one, CPU s", "lead of two", "ratio"]
    return table([*head, "MB sent"], rows)


def main() -> None:
    parser = benchmark_parser(__doc__)
    parser.add_argument("--tokens", type=int, nargs="+", default=[64, 512, 2048])
    parser.add_argument("--turns", type=int, default=3)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(f"{surroundings()}\n\n{report(arguments.tokens, arguments.turns)}")


if __name__ == "__main__":
    main()
