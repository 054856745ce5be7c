"""Philox against the vectors its authors published (Random123, kat_vectors)."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from baton.kernels.sampling.philox import philox, reference

PUBLISHED = [
    ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
    (
        (0xFFFFFFFF,) * 4,
        (0xFFFFFFFF,) * 2,
        (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
    ),
    (
        (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
        (0xA4093822, 0x299F31D0),
        (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
    ),
]

word = st.integers(0, 2**32 - 1)


def by_tensors(counter: tuple[int, ...], key: tuple[int, ...]) -> tuple[int, ...]:
    c0, c1, c2, c3 = (torch.tensor([w]) for w in counter)
    k0, k1 = (torch.tensor([w]) for w in key)
    return tuple(int(w) for w in philox((c0, c1, c2, c3), (k0, k1)))


@pytest.mark.parametrize(("counter", "key", "expected"), PUBLISHED)
def test_the_published_vectors_come_out(
    counter: tuple[int, int, int, int], key: tuple[int, int], expected: tuple[int, int, int, int]
) -> None:
    assert reference(counter, key) == expected
    assert by_tensors(counter, key) == expected


@given(st.tuples(word, word, word, word), st.tuples(word, word))
def test_tensors_give_what_the_definition_gives(
    counter: tuple[int, int, int, int], key: tuple[int, int]
) -> None:
    assert by_tensors(counter, key) == reference(counter, key)


def test_shapes_broadcast() -> None:
    column, row = torch.arange(3).unsqueeze(1), torch.arange(5)
    zero = torch.zeros(1, 1, dtype=torch.int64)

    words = torch.stack(philox((row, column, zero, zero), (zero, zero)), -1)

    assert words.shape == (3, 5, 4)
    assert tuple(words[2, 4].tolist()) == reference((4, 2, 0, 0), (0, 0))
