"""Every token of a pass is computed by one rank, and each rank has as much to do."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from baton.engine.batch.batch import Chunk, make_batch
from baton.engine.batch.token_shares import Piece, num_outputs, output_rows, share_tokens

BLOCK = 4
CHUNK_LEN = st.one_of(st.just(1), st.integers(1, 120))


@st.composite
def passes(draw: st.DrawFn) -> list[Chunk]:
    """Each request has blocks of its own, and tokens unlike those of all others."""
    chunks, first_block = [], 0
    for number in range(draw(st.integers(1, 5))):
        length, start = draw(CHUNK_LEN), draw(st.integers(0, 50))
        num_blocks = -(-(start + length) // BLOCK) + draw(st.integers(0, 2))
        chunks.append(
            Chunk(
                tokens=[1000 * number + place for place in range(length)],
                start=start,
                blocks=range(first_block, first_block + num_blocks),
                num_outputs=draw(st.integers(0, length)),
            )
        )
        first_block += num_blocks
    return chunks


def cost(piece: Piece, chunks: list[Chunk]) -> float:
    """Pairs of a token and one that it sees."""
    start = chunks[piece.chunk].start
    return sum(range(start + piece.first, start + piece.stop))


@given(passes(), st.integers(2, 4))
def test_every_token_is_computed_once_after_as_many_as_in_the_whole_pass(
    chunks: list[Chunk], num_ranks: int
) -> None:
    shares = share_tokens(chunks, num_ranks, BLOCK)
    if shares is None:
        return

    own = [piece.of(chunks) for share in shares for piece in share]

    def placed(of: list[Chunk]) -> Counter[tuple[int, int, int]]:
        batch = make_batch(of, BLOCK, "cpu")
        sequences, found = batch.sequences, Counter[tuple[int, int, int]]()
        rows = batch.output_rows.tolist()
        for request in range(sequences.num_requests):
            first, stop = sequences.query_starts[request : request + 2].tolist()
            for row in range(first, stop):
                position = int(sequences.positions[row])
                block = int(sequences.block_tables[request, position // BLOCK])
                found[int(batch.tokens[row]), position, block] += 1 + (row in rows)
        return found

    assert all(shares)
    assert placed(own) == placed(chunks)


@given(passes(), st.integers(2, 4))
def test_no_block_is_written_by_two_ranks(chunks: list[Chunk], num_ranks: int) -> None:
    shares = share_tokens(chunks, num_ranks, BLOCK) or []

    written = [
        {block for piece in share for block in piece.blocks_of(chunks, BLOCK)} for share in shares
    ]

    assert sum(map(len, written)) == len(set().union(*written))
    if shares:
        starts = [(each.blocks, each.start, len(each.tokens)) for each in chunks]
        assert set().union(*written) == {
            blocks[place // BLOCK]
            for blocks, start, count in starts
            for place in range(start, start + count)
        }


@given(passes(), st.integers(2, 4))
def test_the_outputs_of_all_ranks_are_put_in_the_order_of_the_pass(
    chunks: list[Chunk], num_ranks: int
) -> None:
    shares = share_tokens(chunks, num_ranks, BLOCK)
    if shares is None:
        return
    most = max(num_outputs(chunks, share) for share in shares)
    gathered = []
    for share in shares:
        own = [piece.of(chunks) for piece in share]
        rows = [each.tokens[-each.num_outputs :] for each in own if each.num_outputs]
        tokens = [token for each in rows for token in each]
        gathered += [*tokens, *[-1] * (most - len(tokens))]

    rows_of_pass = output_rows(chunks, shares, most)

    wanted = [
        token for each in chunks for token in each.tokens[len(each.tokens) - each.num_outputs :]
    ]
    assert [gathered[row] for row in rows_of_pass] == wanted


@given(st.integers(2, 8), st.integers(64, 600), st.integers(0, 1000))
def test_a_long_prompt_is_as_much_work_for_each_rank(
    num_ranks: int, num_blocks: int, start: int
) -> None:
    blocks = range(num_blocks + start)
    chunks = [Chunk(range(BLOCK * num_blocks), BLOCK * start, blocks, 1)]

    shares = share_tokens(chunks, num_ranks, BLOCK)

    assert shares is not None
    tokens = [sum(each.stop - each.first for each in share) for share in shares]
    pairs = [sum(cost(each, chunks) for each in share) for share in shares]
    assert max(tokens) - min(tokens) <= 2 * BLOCK
    assert max(pairs) - min(pairs) <= 2 * BLOCK * len(blocks) * BLOCK


def test_early_and_late_parts_of_a_prompt_go_together() -> None:
    chunks = [Chunk(range(64), 0, range(16), 1)]

    shares = share_tokens(chunks, 2, BLOCK)

    assert shares == [[Piece(0, 0, 16), Piece(0, 48, 64)], [Piece(0, 16, 48)]]


def test_short_chunks_go_to_whoever_has_least() -> None:
    chunks = [Chunk([1], 8, range(3), 1), Chunk(range(64), 0, range(16), 1), Chunk([2], 8, [0], 1)]

    shares = share_tokens(chunks, 2, BLOCK)

    assert shares is not None
    assert [Piece(0, 0, 1) in share for share in shares] == [True, False]
    assert [Piece(2, 0, 1) in share for share in shares] == [False, True]


def test_passes_of_few_tokens_are_computed_by_all() -> None:
    decoded = [Chunk([5], 17, range(5 * row, 5 * row + 5), 1) for row in range(64)]

    assert share_tokens(decoded, 2, BLOCK) is None
    assert share_tokens([Chunk(range(63), 0, range(16), 1)], 2, BLOCK) is None
    assert share_tokens([Chunk(range(64), 0, range(1), 1)], 2, 64) is None
    assert share_tokens([Chunk(range(64), 0, range(16), 1)], 2, BLOCK) is not None
