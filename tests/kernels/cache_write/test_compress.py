"""Compressed entries, against their definition and however a prompt is cut."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pytest
import torch
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.cache_write import compress as kernel
from baton.kernels.cache_write.windows import EntryNorm, RotaryFrequencies, Windows
from baton.kernels.cpu.operators import runs
from baton.kernels.paging.paged_rows import rows_at, write_rows
from baton.kernels.positions.rope_tail import rope_tail

BLOCK_SIZE, WIDTH, PAIRS = 4, 19, 3
TABLES = [[5, 2, 7, 0, 9, 4], [1, 8, 3, 6, 10, 11]]
LENGTHS = [23, 18]

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_kind = pytest.mark.parametrize("num_series", [1, 2])
each_size = pytest.mark.parametrize("size", [3, 4, 6])


@dataclass(frozen=True)
class Compressing:
    """Two contexts, a layer that compresses them, and its arena."""

    windows: Windows
    rows: list[Tensor]
    bias: Tensor
    norm: EntryNorm
    rotary: RotaryFrequencies
    arena: Tensor

    def compute(self, requests: Sequence[tuple[int, int]]) -> None:
        """A pass: of each request, its new tokens and its context."""
        sequences = sequences_of(TABLES, requests, block_size=BLOCK_SIZE)
        new = [
            rows[context - new : context]
            for rows, (new, context) in zip(self.rows, requests, strict=True)
        ]
        rows = torch.cat(new)
        write_rows(rows, self.arena, sequences)
        kernel.close_windows(
            self.arena, self.windows, self.bias, self.norm, self.rotary, sequences, len(rows)
        )

    def entries(self, request: int) -> Tensor:
        sequences = sequences_of(TABLES, [(1, length) for length in LENGTHS], block_size=BLOCK_SIZE)
        count = self.windows.num_closed(LENGTHS[request])
        return kernel.entries_of(self.arena, self.windows, request, count, sequences)


def compressing(size: int, num_series: int, dtype: torch.dtype = torch.float32) -> Compressing:
    torch.manual_seed(4)
    windows = Windows(num_tokens=size, num_series=num_series, width=WIDTH)
    return Compressing(
        windows=windows,
        rows=[torch.randn(length, windows.row_width).to(dtype) for length in LENGTHS],
        bias=torch.randn(size, num_series * WIDTH),
        norm=EntryNorm((1 + 0.1 * torch.randn(WIDTH)).to(dtype), 1e-6),
        rotary=RotaryFrequencies(torch.rand(PAIRS), 1.1),
        arena=torch.zeros(12, 1, BLOCK_SIZE, windows.row_width, dtype=dtype),
    )


def as_defined(of: Compressing, request: int) -> Tensor:
    """One entry after the other, in float32."""
    windows, rows = of.windows, of.rows[request].float()
    size, series = windows.num_tokens, windows.num_series
    entries = []
    for first in range(0, len(rows) // size * size, size):
        values, gates = [], []
        for part in range(series):  # the last is of this window, the one before of that before
            begin = first - (series - 1 - part) * size
            columns = slice(part * WIDTH, (part + 1) * WIDTH)
            if begin >= 0:
                own = rows[begin : begin + size]
                values.append(own[:, columns])
                gates.append(own[:, series * WIDTH :][:, columns] + of.bias[:, columns])
        mean = (torch.cat(gates).softmax(0) * torch.cat(values)).sum(0)
        normed = mean / (mean.square().mean() + of.norm.eps).sqrt() * of.norm.weight.float()
        angles = (first * of.rotary.frequencies).unsqueeze(0)
        cos, sin = angles.cos() * of.rotary.factor, angles.sin() * of.rotary.factor
        entries.append(rope_tail(normed.view(1, 1, -1), cos, sin)[0, 0])
    return torch.stack(entries)


@each_kind
@each_size
@each_dtype
def test_entries_are_what_the_definition_says(
    size: int, num_series: int, dtype: torch.dtype
) -> None:
    of = compressing(size, num_series, dtype)

    of.compute([(length, length) for length in LENGTHS])

    bound = 1e-5 if dtype is torch.float32 else 3e-2
    for request in range(2):
        wanted = as_defined(of, request)
        torch.testing.assert_close(of.entries(request).float(), wanted, rtol=bound, atol=bound)


WAYS: dict[str, Sequence[Sequence[tuple[int, int]]]] = {
    "token by token": [[(1, n), (1, min(n, LENGTHS[1]))] for n in range(1, LENGTHS[0] + 1)],
    "in chunks": [[(5, 5), (7, 7)], [(18, 23), (11, 18)]],
    "the last tokens again": [[(23, 23), (18, 18)], [(9, 23), (3, 18)]],
}
"""Passes, of both requests: new tokens and context."""


@compiled
@each_kind
@each_size
@each_dtype
@pytest.mark.parametrize("way", WAYS)
def test_every_slot_has_the_same_bits_however_a_prompt_is_cut(
    way: str, size: int, num_series: int, dtype: torch.dtype
) -> None:
    whole, cut = (compressing(size, num_series, dtype) for _ in range(2))
    whole.compute([(length, length) for length in LENGTHS])

    for requests in WAYS[way]:
        cut.compute(requests)

    assert torch.equal(cut.arena, whole.arena)


def test_a_token_that_closes_nothing_keeps_what_was_made_of_it() -> None:
    of = compressing(4, 2)

    of.compute([(length, length) for length in LENGTHS])

    sequences = sequences_of(TABLES, [(1, 23), (1, 18)], block_size=BLOCK_SIZE)
    places = torch.arange(23)
    kept = rows_at(of.arena, torch.zeros_like(places), places, sequences)
    is_same = (kept == of.rows[0]).all(-1)
    assert is_same.tolist() == [(place + 1) % 4 != 0 for place in range(23)]
    entry = of.windows.entry
    kept[:, entry] = of.rows[0][:, entry]
    assert torch.equal(kept, of.rows[0])


def test_windows_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="impossible windows"):
        Windows(num_tokens=4, num_series=3, width=8)
