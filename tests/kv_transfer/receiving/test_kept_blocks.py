"""What came of a prompt whose transfer was given up, and stays in the prefix cache."""

from __future__ import annotations

from itertools import product
from math import inf, nan

import numpy as np
import pytest
from tests.kv_transfer.receiving.pieces import SENDER, piece_of, resealed, reserved
from tests.kv_transfer.replicas import LAYOUT, PROMPT, TRANSFER, kv_of

from baton.core.ids import TransferId
from baton.core.kv_pool import Holder, HolderKind
from baton.kv_transfer.receiving.receiver import AbortReason


@pytest.mark.parametrize(
    ("reason", "last", "num_kept"),
    [
        (AbortReason.FAILED, 3.0, 12),
        (AbortReason.FAILED, nan, 0),
        (AbortReason.FAILED, -inf, 0),
        (AbortReason.CANCELLED, 3.0, 0),  # nobody goes on with it
    ],
)
def test_of_a_prompt_whose_source_failed_before_its_first_token_what_is_finite_is_kept(
    reason: AbortReason, last: float, num_kept: int
) -> None:
    decode = reserved()
    for layer in range(LAYOUT.num_layers):
        numbers = np.full(3 * LAYOUT.layer_block_bytes // 4, 1.5, np.float32)
        numbers[-1] = last if layer else 0.0
        blocks = np.split(numbers, 3)
        piece = piece_of(decode, layer, 0, 3)
        decode.accept(resealed(piece, *(block.tobytes() for block in blocks)))

    decode.receiver.abort(TRANSFER, reason)

    assert len(decode.receiver.kept(TRANSFER)) == num_kept
    assert decode.pool.num_cached(PROMPT, b"") == num_kept
    assert decode.audit().violations == ()


@pytest.mark.parametrize("is_computed", [True, False])
def test_what_came_of_a_computed_prompt_stays_cached_up_to_the_first_block_that_lacks_a_plane(
    is_computed: bool,
) -> None:
    decode = reserved()
    decode.accept(piece_of(decode, 0))
    decode.accept(piece_of(decode, 1, 0, 3))
    filling = decode.receiver.filling(TRANSFER)
    late = filling.begin(0, piece_of(decode, 1, 3, 4), decode.clock())  # being written
    decode.accept(piece_of(decode, 1, 4))
    if is_computed:
        filling.note_computed()

    decode.receiver.abort(TRANSFER, AbortReason.CANCELLED)

    num_kept = 3 * LAYOUT.block_size if is_computed else 0
    assert len(decode.receiver.kept(TRANSFER)) == num_kept
    assert decode.pool.num_cached(PROMPT, b"") == num_kept
    again = decode.reserve(SENDER, TransferId("again"))  # while the other is in quarantine
    assert again is not None and again.num_cached == num_kept
    filling.end(late, is_written=True)
    decode.receiver.end_quarantine()
    lease = Holder(HolderKind.LEASE, "again")
    for block, layer in product(range(num_kept // LAYOUT.block_size), range(LAYOUT.num_layers)):
        assert decode.pool.view(lease, block, layer) == kv_of(PROMPT, block, layer)
    assert decode.audit().violations == ()
