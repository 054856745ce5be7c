"""A pass cut into pieces is the same pass."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from baton.engine.batch.batch import Chunk
from baton.engine.batch.micro_batches import micro_batches


@st.composite
def passes(draw: st.DrawFn) -> list[Chunk]:
    chunks = []
    for number, num_tokens in enumerate(draw(st.lists(st.integers(1, 40), min_size=1, max_size=6))):
        tokens = tuple(range(100 * number, 100 * number + num_tokens))
        start, num_outputs = draw(st.integers(0, 50)), draw(st.integers(0, num_tokens))
        chunks.append(Chunk(tokens, start, (number,), num_outputs))
    return chunks


counts = st.integers(1, 8)


@given(passes(), counts, counts)
def test_every_token_is_computed_once_in_its_place_and_every_output_wanted_once(
    chunks: list[Chunk], most: int, least_tokens: int
) -> None:
    pieces = micro_batches(chunks, most=most, least_tokens=least_tokens)

    parts = [part for piece in pieces for part in piece]
    assert computed(parts) == computed(chunks)
    assert outputs(parts) == outputs(chunks)


@given(passes(), counts, counts)
def test_pieces_are_even_not_too_many_and_none_is_too_small(
    chunks: list[Chunk], most: int, least_tokens: int
) -> None:
    sizes = [
        sum(len(part.tokens) for part in piece)
        for piece in micro_batches(chunks, most=most, least_tokens=least_tokens)
    ]

    assert len(sizes) <= most
    assert max(sizes) - min(sizes) <= 1
    assert len(sizes) == 1 or min(sizes) >= least_tokens


def test_a_pass_that_is_not_worth_cutting_is_left_as_it_is() -> None:
    chunks = [Chunk((5, 6), 0, (0,), 1), Chunk((7,), 9, (1, 2), 1)]

    assert micro_batches(chunks, most=4, least_tokens=2) == [chunks]


def computed(chunks: list[Chunk]) -> list[tuple[int, int, tuple[int, ...]]]:
    """Each token in order, where it stands and in whose blocks it lies."""
    return [
        (token, chunk.start + place, tuple(chunk.blocks))
        for chunk in chunks
        for place, token in enumerate(chunk.tokens)
    ]


def outputs(chunks: list[Chunk]) -> list[int]:
    """The tokens whose outputs are wanted, in order."""
    return [
        token for chunk in chunks for token in chunk.tokens[len(chunk.tokens) - chunk.num_outputs :]
    ]
