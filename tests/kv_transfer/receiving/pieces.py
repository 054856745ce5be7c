"""Pieces of KV as a prefill replica sends them, and decode replicas that wait for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TRANSFER,
    DecodeReplica,
    kv_of,
)

from baton.core.ids import Epoch, new_epoch
from baton.kv_transfer.handoff.messages import KvPiece
from baton.kv_transfer.layouts.integrity import unit_checksums
from baton.kv_transfer.receiving.receiver import ReceiverConfig

SENDER = new_epoch()
NUM_BLOCKS = LAYOUT.num_blocks_for(len(PROMPT))


def reserved(config: ReceiverConfig | None = None) -> DecodeReplica:
    decode = DecodeReplica(config=config)
    assert decode.reserve(SENDER) is not None
    return decode


def piece_of(
    decode: DecodeReplica,
    layer: int,
    first_block: int = 0,
    stop: int = NUM_BLOCKS,
    sender: Epoch = SENDER,
) -> KvPiece:
    views = tuple(memoryview(kv_of(PROMPT, block, layer)) for block in range(first_block, stop))
    return KvPiece(
        transfer_id=TRANSFER,
        sender_epoch=sender,
        receiver_epoch=decode.receiver.epoch,
        plane=layer,
        first_block=first_block,
        views=views,
        checksums=checksums_of(views),
    )


def checksums_of(views: Sequence[memoryview]) -> bytes:
    return unit_checksums(b"".join(views), LAYOUT.unit_bytes)


def resealed(piece: KvPiece, *blocks: bytes) -> KvPiece:
    """Other bytes, with checksums that match them."""
    views = tuple(memoryview(block) for block in blocks)
    return replace(piece, views=views, checksums=checksums_of(views))


def filled() -> DecodeReplica:
    decode = reserved()
    for layer in range(LAYOUT.num_layers):
        decode.accept(piece_of(decode, layer))
    return decode
