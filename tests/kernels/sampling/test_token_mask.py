"""Bitmasks over the vocabulary, against their definition."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.kernels.sampling.token_mask import (
    full_mask,
    keep_tokens,
    num_words,
    pack_tokens,
    reference,
    unpack_mask,
)


def tokens_in(mask: torch.Tensor) -> list[set[int]]:
    return [set(row.nonzero().flatten().tolist()) for row in mask]


@given(st.integers(1, 100), st.data())
@settings(deadline=None)
def test_a_mask_holds_the_tokens_of_its_bits(vocab_size: int, data: st.DataObject) -> None:
    word = st.integers(-(2**31), 2**31 - 1)
    row = st.lists(word, min_size=num_words(vocab_size), max_size=num_words(vocab_size))
    rows = data.draw(st.lists(row, min_size=1, max_size=3))

    spread = unpack_mask(torch.tensor(rows, dtype=torch.int32), vocab_size)

    assert spread.shape == (len(rows), vocab_size)
    assert tokens_in(spread) == [reference(words, vocab_size) for words in rows]


@given(st.integers(1, 100), st.sets(st.integers(0, 120)))
def test_what_is_packed_is_unpacked_again(vocab_size: int, tokens: set[int]) -> None:
    mask = pack_tokens(tokens, vocab_size)

    assert mask.dtype == torch.int32
    assert tokens_in(unpack_mask(mask.unsqueeze(0), vocab_size)) == [
        {token for token in tokens if token < vocab_size}
    ]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])  # compiled; torch
@given(st.integers(1, 100) | st.integers(8100, 8300), st.integers(0, 2**32), st.data())
@settings(deadline=None)
def test_only_the_tokens_of_a_mask_keep_their_scores(
    dtype: torch.dtype, vocab_size: int, seed: int, data: st.DataObject
) -> None:
    num_rows = data.draw(st.integers(1, 4))
    rows = sorted(data.draw(st.sets(st.integers(0, num_rows - 1), min_size=1)))
    noise = torch.Generator().manual_seed(seed)
    shape = len(rows), num_words(vocab_size)
    masks = torch.randint(-(2**31), 2**31, shape, generator=noise).to(torch.int32)
    wide = torch.randn(num_rows, vocab_size + 3, generator=noise, dtype=dtype)
    scores, before = wide[:, :vocab_size], wide.clone()

    kept = keep_tokens(scores, rows, masks)

    assert torch.equal(wide, before)
    for row in range(num_rows):
        mask = masks[rows.index(row)] if row in rows else full_mask(vocab_size)
        tokens = sorted(reference(mask.tolist(), vocab_size))
        expected = torch.full((vocab_size,), -torch.inf, dtype=dtype)
        expected[tokens] = scores[row, tokens]
        assert torch.equal(kept[row], expected)


@pytest.mark.parametrize("vocab_size", [32, 65])
def test_a_mask_of_another_vocabulary_is_refused(vocab_size: int) -> None:
    with pytest.raises(ValueError, match="no mask of"):
        unpack_mask(torch.zeros(1, 2, dtype=torch.int32), vocab_size)


@pytest.mark.gpu
def test_a_mask_is_spread_on_its_device() -> None:
    mask = torch.randint(-(2**31), 2**31 - 1, (3, 4700), dtype=torch.int32)

    assert torch.equal(unpack_mask(mask.cuda(), 150_399).cpu(), unpack_mask(mask, 150_399))
