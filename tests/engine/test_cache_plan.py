"""How many blocks a cache has room for: beside open ones on a CPU, and beside passes on a GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.model.computing_capture import ComputingCapture
from tests.tiny_checkpoints import make_llama

from baton.core.errors import InvalidConfig
from baton.core.kv_layout import KvLayout
from baton.engine.cache_plan import plan_cache
from baton.engine.checkpoint.load import load_model
from baton.engine.config import CacheConfig, EngineConfig, SchedulerConfig
from baton.engine.kv_cache import KvCache
from baton.engine.open_blocks import open_bytes
from baton.engine.pass_memory import largest_pass
from baton.engine.static_batch import PassLimits
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


class PretendedGpu:
    """Computes on the CPU; what is taken is made up."""

    def __init__(self, *, has_room_for_a_pass: bool = True) -> None:
        self.notes: list[str] = []
        self.graphs = ComputingCapture(first_bytes=50_000, more_bytes=1_000)
        self._has_room_for_a_pass = has_room_for_a_pass

    def free_bytes(self) -> int:
        self.notes.append("free")
        return 1_000_000

    def peak_bytes(self, run: Callable[[], None]) -> int:
        if not self._has_room_for_a_pass:
            raise torch.OutOfMemoryError
        self.notes.append("pass")
        run()
        return 200_000

    def scratch(self, layout: KvLayout, num_blocks: int) -> KvCache:
        cache = KvCache(layout, num_blocks + 1)
        cache.spare_block = num_blocks
        return cache

    def capture(self) -> ComputingCapture:
        self.notes.append("graphs")
        return self.graphs


CROWD = EngineConfig(scheduler=SchedulerConfig(max_running=12, max_batch_tokens=40))


def test_kv_gets_its_fraction_of_what_the_largest_pass_and_its_graphs_leave(
    tmp_path: Path,
) -> None:
    gpu = PretendedGpu()

    plan = plan_cache(load_model(make_llama(tmp_path)), CROWD, "cuda", gpu)

    assert gpu.notes == ["pass", "graphs", "free"]
    assert plan.limits.graph_sizes == (1, 2, 4, 8, 12)
    left = 1_000_000 - 200_000 - (50_000 + 4 * 1_000)
    assert plan.num_blocks == int(0.85 * left) // plan.layout.block_bytes
    assert gpu.graphs.sizes == [12, 6]


def test_a_pass_that_does_not_fit_at_all_is_refused_with_the_remedy(tmp_path: Path) -> None:
    gpu = PretendedGpu(has_room_for_a_pass=False)

    with pytest.raises(InvalidConfig, match="lower scheduler"):
        plan_cache(load_model(make_llama(tmp_path)), CROWD, "cuda", gpu)


@pytest.mark.parametrize(
    ("max_tokens", "max_requests", "max_blocks"), [(40, 12, 8), (5, 9, 8), (100, 3, 2)]
)
def test_the_largest_pass_has_as_many_requests_and_tokens_as_may_be(
    max_tokens: int, max_requests: int, max_blocks: int
) -> None:
    limits = PassLimits(max_tokens=max_tokens, max_requests=max_requests, max_blocks=max_blocks)

    chunks = largest_pass(limits, 4)

    lengths = [len(chunk.tokens) for chunk in chunks]
    longest = 4 * max_blocks
    assert sum(lengths) == min(max_tokens, max_requests * longest)
    assert len(chunks) == min(max_tokens, max_requests)
    assert max(lengths) <= longest
    used = [block for chunk in chunks for block in chunk.blocks]
    assert used == list(range(len(used)))
