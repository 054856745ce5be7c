"""A partly filled block tells nothing of whoever had it before."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.kv_transfer.replicas import (
    LAYOUT,
    PROMPT,
    TRANSFER,
    PrefillReplica,
    kv_of,
    request_holder,
    used,
)

from baton.core.ids import new_epoch
from baton.core.kv_layout import KvLayout
from baton.engine.memory.kv_cache import KvCache

LAST, NUM_USED = divmod(len(PROMPT), LAYOUT.block_size)


def dirty(prefill: PrefillReplica) -> None:
    """Somebody else has used every block before."""
    data = memoryview(b"\xee" * LAYOUT.layer_block_bytes)
    for layer in range(LAYOUT.num_layers):
        for block in range(prefill.pool.num_blocks):
            prefill.cache.write(block, layer, data)


def compute_without_a_tail(prefill: PrefillReplica) -> None:
    """As an engine does: it writes the slots of tokens and no others."""
    holder = request_holder(TRANSFER)
    for layer in range(LAYOUT.num_layers):
        for index in range(LAYOUT.num_blocks_for(len(PROMPT))):
            block = prefill.pool.table(holder)[index]
            old = bytes(prefill.cache.view(block, layer))
            data = merged(kv_of(PROMPT, index, layer), old, index)
            prefill.cache.write(block, layer, memoryview(data))
        prefill.sender.publish(TRANSFER, len(PROMPT), [layer])


def merged(new: bytes, old: bytes, index: int) -> bytes:
    """`new` where there is a token, `old` elsewhere."""
    size, num_used = LAYOUT.token_bytes, min(LAYOUT.block_size, len(PROMPT) - 4 * index)
    half = LAYOUT.block_size * size
    halves = range(0, len(new), half)
    return b"".join(
        new[at : at + num_used * size] + old[at + num_used * size : at + half] for at in halves
    )


def test_the_unused_slots_of_the_last_block_are_zero_before_anybody_reads_them() -> None:
    prefill, epoch = PrefillReplica(), new_epoch()
    prefill.grant(epoch)
    dirty(prefill)

    compute_without_a_tail(prefill)

    holder = request_holder(TRANSFER)
    for layer in range(LAYOUT.num_layers):
        sent = bytes(prefill.pool.view(holder, LAST, layer))
        expected = kv_of(PROMPT, LAST, layer)
        assert used(sent, LAST, len(PROMPT), layer) == used(expected, LAST, len(PROMPT), layer)
        assert sent == expected  # which has zeros where there is no token
    prefill.finish()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "int8", "fp8"])
def test_a_tail_is_cleared_in_every_dtype_and_nothing_else(dtype: str) -> None:
    layout = replace(LAYOUT, dtype=dtype, head_dim=16)
    cache = KvCache(layout, 3)
    full = memoryview(b"\x11" * layout.layer_block_bytes)
    for block in range(3):
        for layer in range(2):
            cache.write(block, layer, full)

    cache.clear_tail(1, 1, NUM_USED)

    assert cache.view(0, 1) == cache.view(2, 1) == cache.view(1, 0) == full
    unit = bytes(cache.view(1, 1)[layout.unit_bytes :])  # of the second head
    kept = parts(layout, layout.token_bytes, unit[: layout.items_bytes])
    if layout.has_scales:
        stop = layout.items_bytes + 2 * layout.block_size * 4
        kept += parts(layout, 4, unit[layout.items_bytes : stop])
    for tokens in kept:
        used_bytes = len(tokens) // layout.block_size * NUM_USED
        assert set(tokens[:used_bytes]) == {0x11}
        assert set(tokens[used_bytes:]) == {0}


def test_a_block_that_would_be_sealed_is_cleared_as_a_whole() -> None:
    layout = replace(LAYOUT, dtype="int4", head_dim=16)
    cache = KvCache(layout, 2)
    for layer in range(2):
        for block in range(2):
            cache.write(block, layer, memoryview(b"\x11" * layout.layer_block_bytes))

    cache.clear_tail(1, 1, NUM_USED)

    assert not any(cache.view(1, 1))
    assert all(cache.view(0, 1)) and all(cache.view(1, 0))


def parts(layout: KvLayout, size: int, data: bytes) -> list[bytes]:
    """What belongs to K, and what to V."""
    half = layout.block_size * size
    return [data[:half], data[half:]]
