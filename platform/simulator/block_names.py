"""Block hashes of a prompt, made from its trace's hash ids.

    ids of 512 tokens      a     b     c          each stands for the prefix up to its block's end
    blocks of 1024         b           c          a whole number of ids: the last of them
    blocks of 256          a1 a2 b1 b2 c1 c2      a part of one

They are uniformly distributed like real hashes, and differ by seed, so that a policy that uses them
is not always lucky.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

from baton.core.errors import InvalidConfig
from baton.platform.traces.trace import Trace, TraceRequest

NAME_BYTES = 16
FACTOR = 0x9E3779B97F4A7C15F39CC0605CEDC835
"""Odd, so that no two ids get one name; 2^128 over the golden ratio, so that near ids lie apart."""


class BlockNames:
    def __init__(self, trace: Trace, block_size: int, seed: int) -> None:
        """Raises InvalidConfig unless one block size divides the other."""
        of_ids = trace.block_size or block_size
        if of_ids % block_size and block_size % of_ids:
            raise InvalidConfig(
                f"--block-size {block_size}: the hash_ids of {trace.name} stand for {of_ids} tokens"
                " each; give a divisor or a multiple of that"
            )
        self._of_ids = of_ids
        self._block_size = block_size
        self._num_joined = max(block_size // of_ids, 1)
        self._num_parts = max(of_ids // block_size, 1)
        self._shift = random.Random(seed).getrandbits(8 * NAME_BYTES)

    def of(self, request: TraceRequest) -> tuple[bytes, ...]:
        """The block hashes of a request; the last may be of a partial block."""
        ids = request.hash_ids
        num_tokens = min(len(ids) * self._of_ids, request.input_length)
        num_blocks, rest = divmod(num_tokens, self._block_size)
        if rest and num_tokens == request.input_length:
            num_blocks += 1
        if self._num_joined > 1:
            ids = self._joined(ids, num_blocks)
        elif self._num_parts > 1:
            ids = self._parts(ids, num_blocks)
        mask = (1 << 8 * NAME_BYTES) - 1
        shift = self._shift
        return tuple([((id_ * FACTOR + shift) & mask).to_bytes(NAME_BYTES, "big") for id_ in ids])

    def _joined(self, ids: Sequence[int], num_blocks: int) -> tuple[int, ...]:
        last = len(ids) - 1
        return tuple(
            ids[min((block + 1) * self._num_joined - 1, last)] for block in range(num_blocks)
        )

    def _parts(self, ids: Sequence[int], num_blocks: int) -> tuple[int, ...]:
        places = (divmod(block, self._num_parts) for block in range(num_blocks))
        return tuple(ids[whole] * self._num_parts + part for whole, part in places)
