"""Passes that launch kernels which none of those run before serving did: one line each.

TRITON_INTERPRET=0 python -m tests.engine.passes.kernels_of_passes FAMILY ...
"""

from __future__ import annotations

import random
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from tests.engine.model_runs import make_runner
from tests.kernels.gpu.launched_kernels import launched
from tests.tiny_checkpoints import FAMILIES

from baton.engine.batch.batch import Chunk
from baton.engine.batch.static_batch import PassLimits
from baton.engine.passes.pass_memory import largest_passes
from baton.engine.passes.runner import ModelRunner
from baton.engine.passes.warm_up import warm_up_passes

LIMITS = PassLimits(max_tokens=64, max_requests=8, max_blocks=100)
NUM_PASSES = 150


def draw_pass(numbers: random.Random, block_size: int) -> list[Chunk]:
    chunks: list[Chunk] = []
    left = LIMITS.max_tokens
    for _ in range(numbers.choice([1, 1, 2, 3, LIMITS.max_requests])):
        count = min(left, numbers.choice([1, 1, 2, 3, 5, 15, 16, 17, 31, 32, 33]))
        if count:
            left -= count
            longest = LIMITS.max_blocks * block_size - count
            start = numbers.choice([0, numbers.randint(0, 40), numbers.randint(0, longest)])
            blocks = range(-(-(start + count) // block_size))
            chunks.append(Chunk([1] * count, start, blocks, 1))
    return chunks


def run(runner: ModelRunner, chunks: Sequence[Chunk]) -> None:
    """In the blocks that there are: what is computed means nothing."""
    count = runner.cache.num_blocks
    inside = [
        Chunk(chunk.tokens, chunk.start, [block % count for block in chunk.blocks], 1)
        for chunk in chunks
    ]
    runner.logits(runner.forward(inside))


def surprises(family: str) -> Iterator[str]:
    folder = FAMILIES[family](Path(tempfile.mkdtemp()))
    runner = make_runner(folder, dtype="float16")  # whose weights are plain tensors everywhere
    runner.taped = None
    runner.cache.__dict__.pop("layers")  # chosen anew, as on a GPU
    size, longest = runner.cache.layout.block_size, runner.info.max_model_len
    numbers = random.Random(0)
    with launched() as kernels:
        runner._layers = runner.cache.layers
        before = [
            *largest_passes(LIMITS, size, longest),
            *warm_up_passes(LIMITS, size, longest),
        ]
        for chunks in before:
            run(runner, chunks)
        yield f"{family}: {len(kernels)} kernels before serving"
        for _ in range(NUM_PASSES):
            known, chunks = set(kernels), draw_pass(numbers, size)
            run(runner, chunks)
            lengths = [(len(chunk.tokens), chunk.start) for chunk in chunks]
            yield from (f"{family}: {lengths} {kernel}" for kernel in kernels - known)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        for line in surprises(name):
            print(line)
