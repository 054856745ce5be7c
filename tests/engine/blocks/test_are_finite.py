"""What is kept of a transfer that was given up is looked at bit by bit: no number may be missed."""

from __future__ import annotations

import math

import pytest
import torch

from baton.core.kv_layout import KvLayout
from baton.engine.blocks import block_bytes
from baton.engine.memory.kv_cache import KvCache

NUM_BLOCKS = 5


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_what_is_not_finite_is_found_wherever_it_is(
    dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layout = KvLayout(
        model_fingerprint=b"model",
        dtype=dtype,
        num_layers=2,
        num_kv_heads=1,
        head_dim=2,
        block_size=4,
    )
    kind = getattr(torch, dtype)
    cache = KvCache(layout, NUM_BLOCKS, dtype=kind)
    monkeypatch.setattr(block_bytes, "_CHECKED_BYTES", 2 * layout.layer_block_bytes)
    most = torch.finfo(kind).max
    for plane in cache.planes:
        plane.fill_(most)
        plane[::2].fill_(-most)
    blocks = range(NUM_BLOCKS - 1)

    assert block_bytes.are_finite(cache, blocks)
    for wrong in (math.nan, math.inf, -math.inf):
        last = cache.planes[-1].view(NUM_BLOCKS, -1)
        last[NUM_BLOCKS - 2, -1] = wrong
        assert not block_bytes.are_finite(cache, blocks)
        assert block_bytes.are_finite(cache, blocks[:-1])
