"""Compiled names of blocks are hashlib's, to the bit."""

from __future__ import annotations

import array
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from baton.core.block_hash import BlockNames, block_hashes, root_hash
from baton.kernels.cpu.library import library
from baton.kernels.names import block_names_cpu as cpu
from baton.kernels.names.block_names import block_names, reference

TOKENS = st.lists(st.integers(0, 2**32 - 1), max_size=200)


@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, block_size=st.integers(1, 100), salt=st.binary(max_size=3))
def test_names_are_those_of_the_definition(tokens: list[int], block_size: int, salt: bytes) -> None:
    root = root_hash(b"model", salt)

    names = block_names(root, tokens, block_size)

    assert list(names) == list(block_hashes(root, tokens, block_size))
    assert names == reference(root, tokens, block_size) == block_names(root, (*tokens,), block_size)


@pytest.mark.skipif(library() is None, reason="nothing is compiled here")
@settings(max_examples=60, deadline=None)
@given(tokens=TOKENS, block_size=st.integers(1, 100))
def test_names_are_the_same_on_a_cpu_without_instructions_for_them(
    tokens: list[int], block_size: int
) -> None:
    found, root = library(), root_hash(b"model")
    assert found is not None

    names = cpu.block_names(found, root, array.array("I", tokens), block_size, is_plain=True)

    assert BlockNames(names) == reference(root, tokens, block_size)


def test_a_name_is_the_same_in_all_releases() -> None:
    """Tiers keep it, and gateways, replicas and peers of unequal releases tell each other."""
    first, second = block_names(root_hash(b"model", b"salt"), range(32), 16)

    assert (first.hex(), second.hex()) == (
        "51e6e4e06e69a46969c131f727c1c64c",
        "bec771a1c4262e0dc404e29a69b2a739",
    )


@pytest.mark.parametrize("kind", [tuple, list])
def test_a_stretch_of_a_prompt_is_named_as_if_it_were_all(
    kind: Callable[[Iterable[int]], Sequence[int]],
) -> None:
    tokens, root = kind(range(100)), root_hash(b"model")

    assert block_names(root, tokens, 8, 30, 60) == reference(root, range(30, 60), 8)
    assert block_names(root, tokens, 8, 90, 200) == reference(root, range(90, 100), 8)
    assert block_names(root, tokens, 8, -20) == reference(root, range(80, 100), 8)
    assert not block_names(root, tokens, 8, 95) and not block_names(root, tokens, 8, 200)


@pytest.mark.parametrize("token", [-1, 2**32])
def test_what_is_no_token_is_refused(token: int) -> None:
    for named in (block_names, reference):
        for tokens in ([1, token], (1, token)):
            with pytest.raises(OverflowError):
                named(root_hash(b"model"), tokens, 2)


@pytest.mark.parametrize("is_layout_known", [True, False])
def test_numbers_of_whatever_type_are_read_as_the_interpreter_reads_them(
    is_layout_known: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_layout_known:
        monkeypatch.setattr(cpu, "_small_number", lambda: bytes(16))
    root, numbers = root_hash(b"model"), (1, 1, 8, 0, 7, 2**30, 2**32 - 1, 9)
    tokens: tuple[Any, ...] = (True, np.int64(1), np.int64(8), *numbers[3:])

    assert block_names(root, tokens, 4) == reference(root, numbers, 4)


@pytest.mark.skipif(library() is None, reason="nothing is compiled here")
def test_half_a_name_has_no_descendants() -> None:
    with pytest.raises(ValueError, match="has 16 bytes, not 5"):
        block_names(b"short", [1, 2], 2)


def test_names_end_to_end_are_a_sequence_of_names() -> None:
    one_by_one = list(block_hashes(root_hash(b"model"), range(12), 2))
    names = BlockNames.of(one_by_one)

    assert (len(names), list(names), names[-1]) == (6, one_by_one, one_by_one[-1])
    assert list(names[1:4]) == one_by_one[1:4] and list(names[::-2]) == one_by_one[::-2]
    assert names.num_common(BlockNames.of([*one_by_one[:4], b"x" * 16])) == 4
    assert names.num_common(BlockNames()) == 0
    with pytest.raises(IndexError):
        names[6]
