"""Arenas and block tables of more than 2^31 items: kernels find what lies far behind the first.

Each runs over blocks at the beginning of memory, and far behind it, and must do the same. Such
memory is promised and not taken: but for the blocks themselves nothing of it is ever touched.
"""

from __future__ import annotations

import mmap
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.attention.batch_invariant_attention_gpu import batch_invariant_attention
from baton.kernels.attention.gather_kv_gpu import gather_kv
from baton.kernels.attention.paged_attention_gpu import paged_attention
from baton.kernels.cache_write.latent_write_gpu import latent_write
from baton.kernels.cache_write.rope_kv_write_gpu import rope_kv_write
from baton.kernels.cache_write.rotation import LatentNorm
from baton.kernels.latent_attention.batch_invariant_mla_attention_gpu import (
    batch_invariant_mla_attention,
)
from baton.kernels.latent_attention.choose_tokens_gpu import scores
from baton.kernels.latent_attention.mla_attention_gpu import mla_attention
from baton.kernels.paging import block_copy_gpu as block_copy
from baton.kernels.paging.arena_gpu import PagedCache
from baton.kernels.paging.quantized_arena import QuantizedArena
from baton.kernels.paging.sequences import Sequences
from baton.kernels.products.linear_gpu import linear_tiles

FAR = 1 << 31
NO_RESERVE = 0x4000
"""MAP_NORESERVE of Linux, which `mmap` has no name for in Python 3.11."""
BLOCK_SIZE, NUM_BLOCKS, WIDTH, LATENT, ROTATED = 4, 9, 16, 12, 6
TABLES, REQUESTS = [[0, 5], [3], [8, 1, 4, 7]], [(3, 7), (1, 2), (2, 15)]
NUM_TOKENS = sum(query_len for query_len, _ in REQUESTS)

Run = Callable[[Tensor, Sequences], Tensor]


def promised(shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Zeros that take no memory before they are written."""
    num_items = torch.Size(shape).numel()
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NO_RESERVE
    memory = mmap.mmap(-1, num_items * dtype.itemsize, flags=flags)
    return torch.frombuffer(memory, dtype=dtype).view(shape)


def far_apart(arena: Tensor, sequences: Sequences) -> tuple[Tensor, Sequences]:
    """The same blocks behind FAR items, and tables whose rows are half of FAR apart."""
    first = -(-FAR // arena[0].numel())
    whole = promised((first + len(arena), *arena.shape[1:]), arena.dtype)
    whole[first:] = arena
    rows, width = sequences.block_tables.shape
    tables = promised((rows, FAR // 2), torch.int32)[:, :width]
    tables.copy_(sequences.block_tables + first)
    return whole, replace(sequences, block_tables=tables)


def made(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(len(shape)))


def paged(arena: Tensor) -> PagedCache:
    if arena.dtype is torch.uint8:
        return PagedCache.of(QuantizedArena(arena, torch.int8, BLOCK_SIZE, WIDTH))
    return PagedCache.of(arena)


def attended(arena: Tensor, sequences: Sequences) -> Tensor:
    """By tiles and by splits, as a pass with prompts is, and by splits alone."""
    cache, q = paged(arena), made(NUM_TOKENS, 4, WIDTH).to(torch.float32)
    by_splits = paged_attention(q, cache, replace(sequences, max_query_len=3))
    by_tiles = paged_attention(q, cache, replace(sequences, max_query_len=17))
    return torch.cat((by_splits, by_tiles, batch_invariant_attention(q, cache, sequences)))


def gathered(arena: Tensor, sequences: Sequences) -> Tensor:
    table = sequences.block_tables[2]
    return torch.cat(gather_kv(paged(arena), table, range(3, 15), 16, torch.float32))


def written(arena: Tensor, sequences: Sequences) -> Tensor:
    rope_kv_write(made(NUM_TOKENS, 8, WIDTH), paged(arena), sequences)
    return arena[-NUM_BLOCKS:]


def of_latents(arena: Tensor, sequences: Sequences) -> Tensor:
    q_latent, q_rope = made(NUM_TOKENS, 3, LATENT), made(NUM_TOKENS, 3, ROTATED)
    attend = mla_attention(q_latent, q_rope, arena, sequences, 0.3, 8)
    return torch.cat(
        (attend, batch_invariant_mla_attention(q_latent, q_rope, arena, sequences, 0.3))
    )


def written_latents(arena: Tensor, sequences: Sequences) -> Tensor:
    angles = torch.rand(NUM_TOKENS, ROTATED // 2, generator=torch.Generator().manual_seed(1))
    latent_write(
        made(NUM_TOKENS, 3, 10 + ROTATED), made(NUM_TOKENS, LATENT + ROTATED), arena, sequences,
        norm=LatentNorm(torch.ones(LATENT), 1e-6), rotation=(angles, angles), is_interleaved=True,
    )  # fmt: skip
    return arena[-NUM_BLOCKS:]


def scored(arena: Tensor, sequences: Sequences) -> Tensor:
    q, weights = made(NUM_TOKENS, 5, LATENT + ROTATED), made(NUM_TOKENS, 5)
    return scores(q, weights, arena, sequences, slice(0, NUM_TOKENS))


def arena_of(*shape: int) -> Tensor:
    return made(NUM_BLOCKS, *shape)


def int8_arena() -> Tensor:
    unit_bytes = 2 * BLOCK_SIZE * (WIDTH + 4)
    arena = QuantizedArena(
        torch.zeros(NUM_BLOCKS, 2, unit_bytes, dtype=torch.uint8), torch.int8, BLOCK_SIZE, WIDTH
    )
    for block in range(NUM_BLOCKS):
        slots = torch.arange(BLOCK_SIZE)
        kv = made(BLOCK_SIZE, 2, 2, WIDTH) + block
        arena.write(torch.full_like(slots, block), slots, kv)
    return arena.units


HEADS = 2, 2, BLOCK_SIZE, WIDTH
LATENTS = 1, BLOCK_SIZE, LATENT + ROTATED
KERNELS: dict[str, tuple[Run, Tensor]] = {
    "attention": (attended, arena_of(*HEADS)),
    "attention, int8": (attended, int8_arena()),
    "gather": (gathered, arena_of(*HEADS)),
    "gather, int8": (gathered, int8_arena()),
    "write": (written, arena_of(*HEADS)),
    "write, int8": (written, int8_arena()),
    "latents": (of_latents, arena_of(*LATENTS)),
    "write latents": (written_latents, arena_of(*LATENTS)),
    "index": (scored, arena_of(*LATENTS)),
}


@pytest.mark.parametrize("kernel", KERNELS)
def test_blocks_far_behind_the_first_are_found(kernel: str) -> None:
    run, arena = KERNELS[kernel]
    near = sequences_of(TABLES, REQUESTS, block_size=BLOCK_SIZE)
    far_arena, far = far_apart(arena, near)

    expected = run(arena.clone(), near).clone()

    assert torch.equal(run(far_arena, far), expected)


def test_blocks_far_behind_the_first_are_copied() -> None:
    shape = FAR // 16 + 3, 16 * block_copy.WORD_BYTES
    layer, other = promised(shape, torch.uint8), promised(shape, torch.uint8)
    blocks = torch.tensor([FAR // 16 + 2, 0, FAR // 16])
    layer[blocks] = torch.randint(0, 256, (3, shape[1]), dtype=torch.uint8)
    staging = torch.zeros(1, 3, shape[1], dtype=torch.uint8)

    block_copy.gather_blocks([layer], blocks, staging)
    block_copy.scatter_blocks(staging, [other], blocks)

    assert torch.equal(staging[0], layer[blocks])
    assert torch.equal(other[blocks], layer[blocks])


def test_rows_far_behind_the_first_are_multiplied() -> None:
    x, near = made(3, 32), made(5, 32)
    far = promised((5, FAR // 2), torch.float32)[:, :32]
    far.copy_(near)

    assert torch.equal(linear_tiles(x, far), linear_tiles(x, near))
