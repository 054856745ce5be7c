"""Features, which are optional: they travel with the KV where both sides have the same."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    kv_of,
    opening,
    request_holder,
    used,
)
from tests.kv_transfer.world import connected, each_transport

from baton.core.errors import LayoutMismatch
from baton.core.kv_layout import OUTPUTS, DraftFeatures, KvLayout
from baton.core.kv_pool import Holder, HolderKind
from baton.kv_transfer.tiers.media.record import RecordFormat, layout_digest

FEATURES = DraftFeatures(kind=OUTPUTS, width=3, dtype="bfloat16")
WITH = replace(LAYOUT, features=FEATURES)
OF_ANOTHER_HEAD = replace(LAYOUT, features=replace(FEATURES, kind="layers (1, 2) joined by 00"))
PLANE = WITH.num_planes - 1
NUM_BLOCKS = WITH.num_blocks_for(len(PROMPT))


@each_transport
async def test_features_arrive_with_the_kv(name: str) -> None:
    async with connected(name, layout=WITH) as it:
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_bytes == NUM_BLOCKS * WITH.block_bytes
        await it.on_d.call(it.decode.adopt)
        assert it.decode.holds_kv()
        await it.assert_nothing_is_left()


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [(WITH, LAYOUT), (LAYOUT, WITH), (OF_ANOTHER_HEAD, WITH)],
    ids=["only P has some", "only D does", "those of another head"],
)
async def test_kv_arrives_without_features_that_only_one_side_knows(
    ours: KvLayout, theirs: KvLayout
) -> None:
    async with connected("grpc", layout=ours, decode_layout=theirs) as it:
        stain(it.decode)
        it.decode.sender_layout = it.prefill.layout
        reservation = await it.grant()
        await it.compute()

        report = await it.fetch(reservation)

        assert report.num_bytes == NUM_BLOCKS * LAYOUT.block_bytes
        await it.on_d.call(it.decode.adopt)
        holder = request_holder(TRANSFER)
        for plane, block in product(range(PLANE), range(NUM_BLOCKS)):
            found, computed = it.decode.pool.view(holder, block, plane), kv_of(PROMPT, block, plane)
            assert used(found, block, len(PROMPT), plane) == (
                used(computed, block, len(PROMPT), plane)
            )
        if it.decode.layout.features is not None:
            rows = [it.decode.pool.view(holder, block, PLANE) for block in range(NUM_BLOCKS)]
            assert not any(map(any, rows))
        await it.assert_nothing_is_left()


def test_who_asks_for_features_that_are_not_there_is_refused() -> None:
    prefill, decode = PrefillReplica(layout=LAYOUT), DecodeReplica(layout=LAYOUT)
    prefill.grant(decode.receiver.epoch)
    decode.reserve(prefill.sender.epoch)

    with pytest.raises(LayoutMismatch, match="features cannot be handed over"):
        prefill.sender.open(replace(opening(prefill, decode), layout=WITH))


def test_tiers_tell_blocks_with_features_from_others() -> None:
    payload = bytes(range(WITH.block_bytes % 256)) + bytes(WITH.block_bytes // 256 * 256)
    format_ = RecordFormat(WITH)
    record = format_.decode(b"".join(format_.encode(format_.make(b"n" * 16, payload))), b"n" * 16)

    *_, (features, checksums) = format_.planes(record)

    assert (features.nbytes, len(checksums)) == (WITH.planes[-1].layer_block_bytes, 8)
    assert layout_digest(WITH) != layout_digest(LAYOUT)


def stain(replica: DecodeReplica) -> None:
    """Leave something in all blocks, as requests before did."""
    pool, holder = replica.pool, Holder(HolderKind.REQUEST, "before")
    pool.reserve(holder, range(pool.num_blocks * pool.layout.block_size), b"")
    for index in range(pool.num_blocks):
        for plane, layout in enumerate(pool.layout.planes):
            pool.write(holder, index, plane, memoryview(b"\x3f" * layout.layer_block_bytes))
    pool.release(holder)
