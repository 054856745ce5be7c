"""Pieces that travel in their messages: copies, which take memory until they leave."""

from __future__ import annotations

import asyncio
from contextlib import aclosing
from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import LAYOUT, TRANSFER, opening, settling
from tests.kv_transfer.sending.test_outbox import computed_replica

from baton.core.owner_thread import OneThread
from baton.kv_transfer.handoff.messages import Outcome
from baton.kv_transfer.handoff.transport import CopiedPiece, LentPiece
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.read_ahead import MAX_COPIES_AHEAD
from baton.kv_transfer.transport.control import ready_pieces
from baton.kv_transfer.transport.control.stream_window import StreamWindow
from baton.kv_transfer.transport.control.wire import write_carried

NUM_PIECES = 12


async def test_a_stream_that_nobody_reads_has_few_bytes_of_messages_ready(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # One piece is ready, and another waits for room.
    monkeypatch.setattr(ready_pieces, "MAX_READY_BYTES", LAYOUT.layer_block_bytes)
    most = 2 + MAX_COPIES_AHEAD
    assert most < NUM_PIECES
    prefill, decode = computed_replica(TRANSFER)
    owner, written = OneThread(), list[int]()

    def carry(piece: LentPiece, unit_bytes: int) -> CopiedPiece:
        written.append(piece.first_block)
        return write_carried(piece, unit_bytes)

    outbox = Outbox(prefill.sender, owner, max_piece_bytes=1, max_bytes_at_once=0)
    window = StreamWindow()
    window.prepare(outbox.pieces(replace(opening(prefill, decode), carry=carry)))
    async with asyncio.timeout(120):
        while len(written) < most:
            await asyncio.sleep(0.001)
        for _ in range(100):  # in which more would be written
            await asyncio.wrap_future(outbox.hashing.submit(int))

    assert len(written) == most

    num_read = 0
    while await window.next() is not None:
        num_read += 1
    assert num_read == len(written) == NUM_PIECES
    await window.close()
    owner.stop()


async def test_blocks_whose_copies_wait_for_the_receiver_are_not_kept_for_it() -> None:
    prefill, decode = computed_replica(TRANSFER)
    owner = OneThread()
    outbox = Outbox(prefill.sender, owner, max_piece_bytes=1, max_bytes_at_once=0)
    request = replace(opening(prefill, decode), carry=write_carried)
    async with aclosing(outbox.pieces(request)) as pieces:
        held = [piece async for piece in pieces]

    await owner.call(lambda: prefill.sender.settle(settling(prefill, decode, Outcome.ABORTED)))

    assert len(held) == NUM_PIECES
    async with asyncio.timeout(120):
        while prefill.sender.lease_ids:
            await asyncio.sleep(0.001)
    assert prefill.audit().violations == ()
    owner.stop()
