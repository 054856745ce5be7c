"""Context parallelism: which tokens of a pass each rank computes.

    blocks of a chunk     | 0  1 | 2  3 | 4  5 | 6  7 |      on two ranks: four parts
    computed by rank         0      1      1      0

Late tokens attend to more tokens than early ones, so each rank gets an early and a late part, which
balances their work. Chunks are cut at block boundaries: each block is written by one rank, which
then sends it to the others. Chunks of few blocks are cut into fewer parts, or go as a whole to the
rank that has least.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from baton.engine.batch.batch import Chunk
from baton.engine.batch.decoding import Decoding

MIN_TOKENS = 32
"""Least prompt tokens per rank for which a pass is shared. With fewer, the time of a pass is that
of reading the weights, so sharing its tokens would save nothing."""


@dataclass(frozen=True, slots=True, order=True)
class Piece:
    """The tokens [first, stop) of a chunk."""

    chunk: int
    """The chunk's index in the pass."""
    first: int
    stop: int

    def of(self, chunks: Sequence[Chunk]) -> Chunk:
        """The piece as a chunk of its own; `chunks` are those of the pass."""
        whole = chunks[self.chunk]
        return whole._replace(
            tokens=whole.tokens[self.first : self.stop],
            start=whole.start + self.first,
            num_outputs=self.num_outputs(chunks),
        )

    def num_outputs(self, chunks: Sequence[Chunk]) -> int:
        whole = chunks[self.chunk]
        return max(0, self.stop - max(self.first, len(whole.tokens) - whole.num_outputs))

    def blocks_of(self, chunks: Sequence[Chunk], block_size: int) -> Sequence[int]:
        """The blocks that the piece's tokens are written to."""
        whole = chunks[self.chunk]
        first = (whole.start + self.first) // block_size
        return whole.blocks[first : -(-(whole.start + self.stop) // block_size)]


Shares = Sequence[Sequence[Piece]]
"""The pieces of each rank, in order. Together they hold every token of a pass once."""


def share_tokens(chunks: Sequence[Chunk], num_ranks: int, block_size: int) -> Shares | None:
    """The pieces that each rank computes; None for a pass that all ranks should compute whole, as
    it has too few prompt tokens to share."""
    if isinstance(chunks, Decoding) or _num_prompt_tokens(chunks) < MIN_TOKENS * num_ranks:
        return None
    shares: list[list[Piece]] = [[] for _ in range(num_ranks)]
    whole = []
    for number, chunk in enumerate(chunks):
        num_parts = _num_parts(chunk, num_ranks, block_size)
        if num_parts == 1:
            whole.append(Piece(number, 0, len(chunk.tokens)))
        for part, (first, stop) in enumerate(_parts(chunk, num_parts, block_size)):
            if num_parts > 1 and first < stop:
                rank = min(part, 2 * num_ranks - 1 - part)
                shares[rank].append(Piece(number, first, stop))
    for piece in whole:
        min(shares, key=_num_tokens).append(piece)
    if not all(shares):
        return None
    return [list(_joined(sorted(share))) for share in shares]


def num_outputs(chunks: Sequence[Chunk], share: Sequence[Piece]) -> int:
    return sum(piece.num_outputs(chunks) for piece in share)


def output_rows(chunks: Sequence[Chunk], shares: Shares, most: int) -> list[int]:
    """The indices of the pass's outputs, in the order of its tokens, in the gathered outputs of all
    ranks, which have `most` rows of each rank."""
    rows_by_piece: dict[Piece, range] = {}
    for rank, share in enumerate(shares):
        start = rank * most
        for piece in share:
            stop = start + piece.num_outputs(chunks)
            rows_by_piece[piece] = range(start, stop)
            start = stop
    return [row for piece in sorted(rows_by_piece) for row in rows_by_piece[piece]]


def _num_prompt_tokens(chunks: Sequence[Chunk]) -> int:
    return sum(len(chunk.tokens) for chunk in chunks if len(chunk.tokens) > 1)


def _num_parts(chunk: Chunk, num_ranks: int, block_size: int) -> int:
    """Into how many parts a chunk is cut: 2 per rank, 1 per rank, or 1, so that there are no more
    parts than blocks."""
    num_blocks = -(-(chunk.start + len(chunk.tokens)) // block_size) - chunk.start // block_size
    return next((n for n in (2 * num_ranks, num_ranks) if n <= num_blocks), 1)


def _parts(chunk: Chunk, num_parts: int, block_size: int) -> Iterator[tuple[int, int]]:
    """The (first, stop) of each part of a chunk, as even as block boundaries allow; some may be
    empty."""
    num_tokens, borders = len(chunk.tokens), [0]
    for part in range(1, num_parts):
        place = chunk.start + num_tokens * part / num_parts
        border = round(place / block_size) * block_size - chunk.start
        borders.append(min(max(border, borders[-1]), num_tokens))
    borders.append(num_tokens)
    return pairwise(borders)


def _num_tokens(share: Sequence[Piece]) -> int:
    return sum(piece.stop - piece.first for piece in share)


def _joined(pieces: Sequence[Piece]) -> Iterator[Piece]:
    """`pieces` with adjacent pieces of a chunk joined into one."""
    last = pieces[0]
    for piece in pieces[1:]:
        if (piece.chunk, piece.first) == (last.chunk, last.stop):
            last = Piece(last.chunk, last.first, piece.stop)
        else:
            yield last
            last = piece
    yield last
