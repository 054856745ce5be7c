"""What is known to be wrong does not lie where it could be found.

So nothing that was refused stays behind in a block, and nothing that others read is cleared.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TRANSFER,
    DecodeReplica,
    PrefillReplica,
    copied,
    kv_of,
    opening,
    request_holder,
)

from baton.core.errors import CorruptPiece
from baton.core.kv_pool import Holder, HolderKind
from baton.engine.blocks.block_pool import BlockPool
from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.sending.pieces import cuts

NAN = b"\x00\x00\xc0\x7f"


def whole_cache(pool: BlockPool, cache: KvCache) -> np.ndarray:
    blocks, layers = range(pool.num_blocks), range(pool.layout.num_layers)
    return np.frombuffer(
        b"".join(cache.view(block, layer) for block in blocks for layer in layers), np.float32
    )


def test_bytes_that_were_refused_do_not_stay_in_the_block() -> None:
    prefill, decode = PrefillReplica(), DecodeReplica()
    cache = KvCache(LAYOUT, 32)
    decode.pool = BlockPool(cache)
    decode.receiver = type(decode.receiver)(decode.pool, decode.receiver.epoch)
    prefill.grant(decode.receiver.epoch)
    decode.reserve(prefill.sender.epoch)
    prefill.compute()
    stream = prefill.sender.open(opening(prefill, decode))
    [cut, *_] = cuts(prefill.sender.begin_read(stream)[0], lambda: LAYOUT.layer_block_bytes)
    bad = NAN * (LAYOUT.layer_block_bytes // len(NAN))
    piece = replace(copied(cut), views=(memoryview(bad),))

    with pytest.raises(CorruptPiece):
        decode.accept(piece)

    assert np.isfinite(whole_cache(decode.pool, cache)).all()


def test_a_full_block_that_others_may_read_is_not_cleared_for_a_loan_that_ends_in_it() -> None:
    cache = KvCache(LAYOUT, 8)
    pool = BlockPool(cache)
    running, lease = request_holder("running"), Holder(HolderKind.LEASE, TRANSFER)
    tokens = PROMPT[:8]
    pool.reserve(running, tokens, b"")
    for block in range(2):
        pool.write(running, block, 0, memoryview(kv_of(tokens, block, 0)))
    pool.commit(running, tokens, 8, b"")
    pool.share(running, lease, 2)
    pool.release(running)

    pool.clear_tail(lease, 6, 0)

    assert pool.view(lease, 1, 0) == kv_of(tokens, 1, 0)


def test_what_is_not_finite_does_not_stay_behind_in_free_blocks() -> None:
    cache = KvCache(LAYOUT, 8)
    pool = BlockPool(cache)
    spoilt, other = request_holder("spoilt"), request_holder("other")
    pool.reserve(other, (*PROMPT[:4], 1), b"")
    pool.commit(other, PROMPT[:4], 4, b"")
    pool.reserve(spoilt, (*PROMPT[:4], 2, 3), b"")  # the first block is the other's, too
    shared, own = pool.table(spoilt)
    bad = memoryview(NAN * (LAYOUT.layer_block_bytes // len(NAN)))
    for layer in range(LAYOUT.num_layers):
        cache.write(shared, layer, memoryview(kv_of(PROMPT, 0, layer)))
        cache.write(own, layer, bad)

    pool.wipe(spoilt)

    assert cache.view(own, 1) == bytes(LAYOUT.layer_block_bytes)
    assert cache.view(shared, 1) == kv_of(PROMPT, 0, 1)
