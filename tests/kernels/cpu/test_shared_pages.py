"""Pieces of huge pages: side by side, aligned, and never over each other."""

from __future__ import annotations

from baton.kernels.cpu.shared_pages import ALIGNMENT, MAPPING_BYTES, SharedPages


def test_pieces_lie_side_by_side_and_are_aligned() -> None:
    pages = SharedPages()
    pieces = [pages.cut((3, 7)), pages.cut((64,)), pages.cut((1, 1, 1))]

    starts = [piece.data_ptr() for piece in pieces]
    assert [start - starts[0] for start in starts] == [0, ALIGNMENT, 2 * ALIGNMENT]
    assert starts[0] % ALIGNMENT == 0
    assert [tuple(piece.shape) for piece in pieces] == [(3, 7), (64,), (1, 1, 1)]


def test_what_is_written_to_one_piece_is_not_seen_in_another() -> None:
    pages = SharedPages()
    size = MAPPING_BYTES // 4
    pieces = [pages.cut((size - number,)) for number in range(6)]  # more than a mapping holds
    pieces.append(pages.cut((MAPPING_BYTES,)))  # too large for one
    for number, piece in enumerate(pieces):
        piece[0], piece[-1] = number, number

    assert [int(piece[0]) for piece in pieces] == list(range(7))
    assert [int(piece[-1]) for piece in pieces] == list(range(7))
