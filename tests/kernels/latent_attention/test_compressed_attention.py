"""Attention to windows and entries: compiled against its definition, for each token by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch
from tests.kernels.passes import sequences_of
from torch import Tensor

from baton.kernels.attention.scoring import PLAIN
from baton.kernels.cache_write.windows import Windows
from baton.kernels.cpu.operators import runs
from baton.kernels.latent_attention import compressed_attention as kernel
from baton.kernels.latent_attention.entries import Entries, EntryIndex
from baton.kernels.paging.sequences import Sequences

BLOCK_SIZE, HEADS, WIDTH, WINDOW, TOP_K = 4, 11, 21, 6, 3
TABLES = [[5, 2, 7, 0, 9, 4], [1, 8, 3, 6, 10, 11]]
REQUESTS = [(9, 23), (1, 18)]

compiled = pytest.mark.skipif(not runs(torch.zeros(1)), reason="there is no C++ compiler")
each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_kind = pytest.mark.parametrize("kind", ["window", "all entries", "some entries"])


@dataclass(frozen=True)
class Asked:
    q: Tensor
    arena: Tensor
    sequences: Sequences
    entries: Entries | None
    sinks: Tensor

    def answer(self, *, by_definition: bool = False) -> Tensor:
        attend = kernel.reference if by_definition else kernel.compressed_attention
        return attend(self.q, self.arena, self.sequences, WINDOW, self.entries, PLAIN, self.sinks)


def asked(kind: str, dtype: torch.dtype = torch.float32) -> Asked:
    torch.manual_seed(6)
    tokens = sum(new for new, _ in REQUESTS)

    def rows(width: int) -> Tensor:
        return torch.randn(12, 1, BLOCK_SIZE, width).to(dtype)

    entries = None
    if kind != "window":
        windows = Windows(num_tokens=3, num_series=2, width=WIDTH)
        index = EntryIndex(
            q=torch.randn(tokens, 9, 5).to(dtype),
            weights=torch.randn(tokens, 9).to(dtype),
            scale=0.2,
            arena=rows(20),
            windows=replace(windows, width=5),
            top_k=TOP_K,
        )
        entries = Entries(
            arena=rows(windows.row_width),
            windows=windows,
            index=index if kind == "some entries" else None,
        )
    return Asked(
        q=torch.randn(tokens, HEADS, WIDTH).to(dtype),
        arena=rows(WIDTH),
        sequences=sequences_of(TABLES, REQUESTS, block_size=BLOCK_SIZE),
        entries=entries,
        sinks=torch.randn(HEADS).to(dtype),
    )


@compiled
@each_kind
@each_dtype
def test_operators_attend_as_the_definition_does(kind: str, dtype: torch.dtype) -> None:
    of = asked(kind, dtype)

    bound = 1e-5 if dtype is torch.float32 else 3e-2
    torch.testing.assert_close(of.answer(), of.answer(by_definition=True), rtol=bound, atol=bound)


@compiled
@each_kind
@each_dtype
def test_a_token_gets_the_same_bits_alone(kind: str, dtype: torch.dtype) -> None:
    """The last request of the pass, which has one new token."""
    of = asked(kind, dtype)
    every = of.answer()
    entries, last = of.entries, slice(9, 10)
    if entries is not None and entries.index is not None:
        index = entries.index
        alone = replace(index, q=index.q[last], weights=index.weights[last])
        entries = replace(entries, index=alone)
    own = replace(
        of,
        q=of.q[last],
        entries=entries,
        sequences=sequences_of(TABLES[1:], REQUESTS[1:], block_size=BLOCK_SIZE),
    )

    assert torch.equal(own.answer(), every[last])


@each_kind
def test_a_token_sees_no_more_than_it_should(kind: str) -> None:
    """By what changes it: nothing of later tokens, and nothing before the window but entries."""
    of = asked(kind)
    before = of.answer()
    of.arena[TABLES[0][5]] += 1  # tokens 20 to 22
    of.arena[TABLES[0][0]] += 1  # tokens 0 to 3, behind all windows

    changed = (of.answer() != before).flatten(1).any(1).tolist()

    assert changed == [False] * 6 + [True] * 3 + [False]  # tokens 14 to 22, and another request's


def test_of_entries_that_are_as_good_the_first_are_seen() -> None:
    of = asked("some entries")
    assert of.entries is not None and of.entries.index is not None
    index = replace(of.entries.index, weights=torch.zeros_like(of.entries.index.weights))
    tied = replace(of, entries=replace(of.entries, index=index))
    before = tied.answer()
    entry = of.entries.windows.entry

    of.entries.arena[TABLES[0][2], 0, 3, entry] += 1  # of token 11: entry 3, the fourth
    assert torch.equal(tied.answer(), before)
    of.entries.arena[TABLES[0][2], 0, 0, entry] += 1  # of token 8: entry 2, the third
    assert not torch.equal(tied.answer(), before)


@compiled
def test_what_is_no_number_is_no_reason_to_fail() -> None:
    of = asked("some entries")
    assert of.entries is not None and of.entries.index is not None
    of.entries.index.q[:] = torch.nan

    assert of.answer().isfinite().all()


def test_what_does_not_fit_is_refused() -> None:
    of = asked("window")

    with pytest.raises(ValueError, match="shapes do not fit"):
        replace(of, sinks=of.sinks[1:]).answer()
