"""The bytes of KV blocks."""

from __future__ import annotations

import gc
import weakref
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import product

import pytest
import torch

from baton.core.kv_layout import KvLayout
from baton.engine.memory.kv_cache import KvCache, num_blocks_in


def make_cache(num_blocks: int = 3, dtype: str = "float32", device: str = "cpu") -> KvCache:
    layout = KvLayout(
        model_fingerprint=b"",
        dtype=dtype,
        num_layers=2,
        num_kv_heads=3,
        head_dim=8,
        block_size=4,
    )
    return KvCache(layout, num_blocks, device)


def pattern(cache: KvCache, byte: int) -> memoryview:
    return memoryview(bytes([byte]) * cache.layout.layer_block_bytes)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_arenas_are_zero_and_shaped_as_the_layout_says(dtype: str) -> None:
    cache = make_cache(dtype=dtype)

    assert [arena.shape for arena in cache.planes] == [(3, 3, 2, 4, 8)] * 2
    assert all(arena.dtype is getattr(torch, dtype) for arena in cache.planes)
    assert not any(arena.any() for arena in cache.planes)


def test_latents_are_one_vector_a_token() -> None:
    layout = replace(make_cache().layout, num_kv_heads=1, num_vectors=1)
    cache = KvCache(layout, 3)
    cache.write(1, 0, memoryview(b"\x11" * layout.layer_block_bytes))

    cache.clear_tail(1, 0, 3)

    assert cache.planes[0].shape == (3, 1, 4, 8)
    assert bytes(cache.view(1, 0)) == b"\x11" * (3 * 8 * 4) + bytes(8 * 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "int8"])
def test_several_blocks_are_zeroed_in_one_plane_at_once(dtype: str) -> None:
    cache = make_cache(dtype=dtype)
    for block, plane in product(range(3), range(2)):
        cache.write(block, plane, pattern(cache, 0x11))

    cache.clear([0, 2], 1)

    found = {(b, p): any(cache.view(b, p)) for b, p in product(range(3), range(2))}
    assert [where for where, is_set in found.items() if not is_set] == [(0, 1), (2, 1)]


def test_a_view_is_the_bytes_of_one_block_in_one_layer() -> None:
    cache = make_cache()
    cache.planes[1][2] = torch.arange(192.0).view(3, 2, 4, 8)

    view = cache.view(2, 1)

    assert view.nbytes == cache.layout.layer_block_bytes
    assert view.cast("f").tolist() == list(map(float, range(192)))
    assert not any(cache.view(1, 1)) and not any(cache.view(2, 0))


def test_a_view_follows_the_arena_and_cannot_change_it() -> None:
    cache = make_cache()
    view = cache.view(0, 0)

    cache.planes[0][0, 0, 0, 0, 0] = 1.0

    assert view.cast("f")[0] == 1.0
    with pytest.raises(TypeError):
        view[0] = 1


def test_layers_of_few_bits_want_to_know_what_the_model_computes_in() -> None:
    cache = KvCache(replace(make_cache().layout, dtype="int8"), 3)

    with pytest.raises(ValueError, match="say which dtype the model computes in"):
        _ = cache.layers


def test_a_view_outlives_the_cache() -> None:
    cache = make_cache()
    cache.write(1, 1, pattern(cache, 65))
    view, expected = cache.view(1, 1), bytes(pattern(cache, 65))

    del cache

    assert view == expected


def test_memory_is_let_go_at_once() -> None:
    """What is free of a GPU is measured when a cache for trials has gone."""
    cache = make_cache()
    assert cache.layers
    cache.write_blocks([1], range(1), cache.scratch(cache.layout.layer_block_bytes))
    kept = weakref.ref(cache.planes[0])
    gc.disable()
    try:
        del cache
        assert kept() is None
    finally:
        gc.enable()


def test_a_block_is_written_alone() -> None:
    cache = make_cache()

    cache.write(1, 0, pattern(cache, 63))

    assert cache.view(1, 0) == pattern(cache, 63)
    assert cache.planes[0][1].all()
    assert not cache.planes[0][[0, 2]].any() and not cache.planes[1].any()


def test_what_was_viewed_can_be_written_elsewhere_whatever_its_format() -> None:
    source, target = make_cache(), make_cache()
    source.planes[0].copy_(torch.randn(source.planes[0].shape))

    target.write(2, 1, source.view(0, 0).cast("f"))

    assert torch.equal(target.planes[1][2], source.planes[0][0])


def test_other_lengths_are_refused() -> None:
    cache = make_cache()
    with pytest.raises(ValueError, match="bytes for a block of 768 bytes"):
        cache.write(0, 0, memoryview(bytes(767)))


@pytest.mark.parametrize("block", [-1, 3])
def test_other_blocks_are_refused(block: int) -> None:
    cache = make_cache()
    with pytest.raises(IndexError):
        cache.view(block, 0)
    with pytest.raises(IndexError):
        cache.write(block, 0, pattern(cache, 1))


def test_memory_is_counted_in_whole_blocks() -> None:
    layout = make_cache().layout

    assert layout.block_bytes == 2 * 768
    assert num_blocks_in(10 * layout.block_bytes + 5, layout) == 10
    with pytest.raises(ValueError, match="at least 1"):
        KvCache(layout, num_blocks_in(5, layout))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_on_a_gpu_views_are_copies_and_writes_arrive() -> None:
    cache = make_cache(dtype="bfloat16", device="cuda")
    cache.planes[0].copy_(torch.randn(cache.planes[0].shape))

    cache.write(2, 1, cache.view(0, 0))

    assert cache.view(2, 1) == cache.view(0, 0)
    assert torch.equal(cache.planes[1][2], cache.planes[0][0])


@pytest.mark.multi_gpu
def test_blocks_reach_a_second_gpu_from_a_thread_whose_own_is_the_first() -> None:
    cache = make_cache(dtype="bfloat16", device="cuda:1")
    data = cache.scratch(4 * cache.layout.layer_block_bytes)
    data[:] = bytes(at % 251 for at in range(data.nbytes))

    with ThreadPoolExecutor(1) as others:
        others.submit(cache.write_blocks, [2, 0], range(2), data).result()

    written = [bytes(cache.view(block, plane)) for plane in range(2) for block in (2, 0)]
    assert b"".join(written) == bytes(data)
