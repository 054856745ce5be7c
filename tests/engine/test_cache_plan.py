"""How many blocks a cache has room for, beside those that are not sealed yet."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from tests.tiny_checkpoints import make_llama

from baton.core.errors import InvalidConfig
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.kv_cache import KvCache
from baton.engine.open_blocks import open_bytes
from baton.kernels.sealed_kv import SealedArena

GIB = 1 << 30
MEMORY_BYTES = 1 << 20
SEALED = EngineConfig(
    cache=CacheConfig(kv_dtype="int4", memory_gib=MEMORY_BYTES / GIB),
    scheduler=SchedulerConfig(max_running=10, max_batch_tokens=64),
)


def test_open_blocks_are_of_the_same_memory_as_sealed_ones(tmp_path: Path) -> None:
    loaded = load_model(make_llama(tmp_path))

    plan = plan_cache(loaded, SEALED, "cpu")

    cache = KvCache(plan.layout, plan.num_blocks)
    cache.open_blocks(loaded.info.dtype, plan.limits)
    arenas = [arena for arena in cache.arenas if isinstance(arena, SealedArena)]
    beside = sum(arena.open_rows.nbytes for arena in arenas) + arenas[0].pass_rows.nbytes
    assert len(arenas) == plan.layout.num_layers
    assert beside == open_bytes(plan.layout, loaded.info.dtype, plan.limits)
    assert plan.num_blocks == (MEMORY_BYTES - beside) // plan.layout.block_bytes


def test_memory_that_open_blocks_fill_is_too_little(tmp_path: Path) -> None:
    crowded = replace(SEALED, scheduler=SchedulerConfig(max_running=1000))

    with pytest.raises(InvalidConfig, match="beside the open ones"):
        plan_cache(load_model(make_llama(tmp_path)), crowded, "cpu")


def test_blocks_are_sealed_in_four_bits_on_cpus_alone(tmp_path: Path) -> None:
    with pytest.raises(InvalidConfig, match="int4 is for CPUs"):
        plan_cache(load_model(make_llama(tmp_path)), SEALED, "cuda")
