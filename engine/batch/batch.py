"""The input tensors of one forward pass."""

from __future__ import annotations

from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from baton.engine.batch.row_adapters import RowAdapters, adapter_numbers
from baton.kernels.gpu.upload import uploaded
from baton.kernels.paging.sequences import Sequences

ALIGNMENT = 16
"""Bytes. Triton would compile a kernel again for tensors that are not aligned to this, and requests
would wait for it."""
DTYPES = {"q": torch.int64, "i": torch.int32}
OnLayer = Callable[[int], None]
"""Called during a pass with each layer in order, once the layer's KV of all chunks is written."""


def ignore_layer(layer: int) -> None:
    """An `OnLayer` that does nothing."""


class Chunk(NamedTuple):
    """The next tokens of one request in a pass."""

    tokens: Sequence[int]
    start: int
    """Number of the request's tokens that are in the cache already."""
    blocks: Sequence[int]
    """The request's block table, covering at least `start + len(tokens)` tokens."""
    num_outputs: int
    """How many of `tokens`, the last ones, hidden states are wanted of: 1 to sample, 0 for none."""
    open_slot: int = 0
    """A number that no other running request has. It selects the request's open blocks in a cache
    that has them (int4 KV)."""
    adapter: int = 0
    """The adapter that the request asks for: see `RowAdapters`."""


@dataclass(frozen=True, slots=True, eq=False)
class Batch:
    """The inputs of one forward pass: T new tokens end to end, S rows whose outputs are wanted."""

    tokens: Tensor  # [T] int64
    output_rows: Tensor  # [S] int64, indices into the T tokens
    sequences: Sequences
    adapters: RowAdapters | None = None
    """None if no request has one."""


def make_batch(chunks: Sequence[Chunk], block_size: int, device: torch.device | str) -> Batch:
    """Build the batch of `chunks`, end to end. All tensors are copied to the device in one
    transfer, asynchronously. Raises ValueError if a chunk is empty or longer than its blocks."""
    is_on_host = torch.device(device).type == "cpu"
    tokens, positions, output_rows = array("q"), array("q"), array("q")
    tables = array("q" if is_on_host else "i")
    context_lens = tuple(chunk.start + len(chunk.tokens) for chunk in chunks)
    width = -(-max(context_lens) // block_size)
    for chunk, context_len in zip(chunks, context_lens, strict=True):
        num_blocks = -(-context_len // block_size)
        if not chunk.tokens or len(chunk.blocks) < num_blocks:
            raise ValueError(
                f"a chunk of {len(chunk.tokens)} tokens after {chunk.start} does not fit into "
                f"{len(chunk.blocks)} blocks of {block_size}"
            )
        tokens.extend(chunk.tokens)
        positions.extend(range(chunk.start, context_len))
        tables.extend(chunk.blocks[:num_blocks])
        tables.extend([0] * (width - num_blocks))
        output_rows.extend(range(len(tokens) - chunk.num_outputs, len(tokens)))
    query_lens = [len(chunk.tokens) for chunk in chunks]
    starts = array("q", accumulate(query_lens, initial=0))
    open_slots = array("q", [chunk.open_slot for chunk in chunks])
    numbers = [chunk.adapter for chunk in chunks]
    adapters = adapter_numbers(numbers, query_lens, output_rows) if any(numbers) else ()
    made = _uploaded(
        (tokens, output_rows, positions, starts, array("q", context_lens), open_slots, *adapters),
        tables,
        device,
    )
    return Batch(
        tokens=made[0],
        output_rows=made[1],
        sequences=Sequences(
            num_requests=len(chunks),
            positions=made[2],
            query_starts=made[3],
            context_lens=made[4],
            block_tables=made[-1].view(len(chunks), width),
            block_size=block_size,
            max_query_len=max(query_lens),
            max_context_len=max(context_lens),
            open_slots=made[5],
        ).knowing(zip(query_lens, context_lens, strict=True)),
        adapters=RowAdapters(made[6], made[7]) if adapters else None,
    )


def _uploaded(
    words: Sequence[array[int]], tables: array[int], device: torch.device | str
) -> list[Tensor]:
    """A tensor on the device for each array of `words`, and then for `tables`. They share one
    buffer and are copied in one transfer."""
    whole, starts = bytearray(), []
    for piece in (*words, tables):
        starts.append(len(whole))
        whole += piece
        whole += bytes(-len(whole) % ALIGNMENT)
    there = uploaded(torch.frombuffer(whole, dtype=torch.uint8), device)
    return [
        there[start : start + len(piece) * piece.itemsize].view(DTYPES[piece.typecode])
        for start, piece in zip(starts, (*words, tables), strict=True)
    ]
