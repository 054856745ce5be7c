# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
# mypy: no-warn-return-any
"""Gathers or scatters blocks of all layers in one launch: see kernels/paging/block_copy.py.

A program copies up to 16 KB of one block of one layer, 16 bytes per thread. The addresses of layers
are in a table, which is made for each call, as there are few.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from baton.kernels.gpu.upload import uploaded

WORD_BYTES = 8
MAX_WORDS = 2048


def gather_blocks(layers: Sequence[Tensor], blocks: Tensor, staging: Tensor) -> None:
    _launch(layers, blocks, staging, is_gathering=True)


def scatter_blocks(staging: Tensor, layers: Sequence[Tensor], blocks: Tensor) -> None:
    _launch(layers, blocks, staging.contiguous(), is_gathering=False)


def _launch(layers: Sequence[Tensor], blocks: Tensor, staging: Tensor, is_gathering: bool) -> None:
    block_bytes = staging.shape[2]
    if block_bytes % WORD_BYTES:
        raise ValueError(f"blocks of {block_bytes} bytes are no 64-bit words")
    starts = [layer.data_ptr() for layer in layers]
    is_aligned = all(start % 16 == 0 for start in starts)
    addresses = uploaded(torch.tensor(starts), staging.device)
    num_words = block_bytes // WORD_BYTES
    words = min(MAX_WORDS, triton.next_power_of_2(num_words))
    # Blocks are the first dimension, since the other two are limited to 65,535.
    grid = len(blocks), triton.cdiv(num_words, words), len(layers)
    if len(blocks):
        _copy[grid](
            addresses, blocks, staging.view(torch.int64), num_words,
            IS_GATHERING=is_gathering, IS_ALIGNED=is_aligned, WORDS=words, num_warps=4,
        )  # fmt: skip


@triton.jit
def _copy(
    addresses,
    blocks,
    staging,
    num_words,
    IS_GATHERING: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
    WORDS: tl.constexpr,
):
    layer, index = tl.program_id(2), tl.program_id(0)
    address = tl.load(addresses + layer)
    word = tl.program_id(1) * WORDS + tl.arange(0, WORDS)
    inside = word < num_words
    place = (layer.to(tl.int64) * tl.num_programs(0) + index) * num_words
    block = tl.load(blocks + index) * num_words
    arena = address.to(tl.pointer_type(tl.int64))
    if IS_ALIGNED:
        arena = tl.multiple_of(arena, 16)  # bytes: two words are copied at once
    if IS_GATHERING:
        tl.store(staging + place + word, tl.load(arena + block + word, mask=inside), mask=inside)
    else:
        tl.store(arena + block + word, tl.load(staging + place + word, mask=inside), mask=inside)
