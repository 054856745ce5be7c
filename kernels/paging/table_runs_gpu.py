# mypy: allow-untyped-defs, allow-untyped-calls, allow-untyped-decorators, allow-incomplete-defs
"""Writes runs of entries into block tables: see kernels/paging/table_runs.py. One program writes
1,024 entries of a run; programs after the end of a short run have nothing to do."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

ENTRIES = 1024


def write_runs(tables: Tensor, words: Tensor, num_runs: int, longest: int) -> None:
    if num_runs:
        _write[num_runs, triton.cdiv(longest, ENTRIES)](tables, words, ENTRIES=ENTRIES, num_warps=4)


@triton.jit
def _write(tables, words, ENTRIES: tl.constexpr):
    run = tl.program_id(0)
    first = tl.load(words + 3 * run)
    length = tl.load(words + 3 * run + 1)
    start = tl.load(words + 3 * run + 2)
    entry = tl.program_id(1) * ENTRIES + tl.arange(0, ENTRIES)
    inside = entry < length
    blocks = tl.load(words + 3 * tl.num_programs(0) + start + entry, mask=inside)
    tl.store(tables + first + entry, blocks.to(tables.dtype.element_ty), mask=inside)
