"""The cache of a lead, and what its ranks see of it, all in this process."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace

from baton.core.kv_layout import KvLayout
from baton.engine.memory.kv_cache import KvCache
from baton.engine.ranks.assemble import Introduce
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.engine.ranks.shares import SharedMemory, open_place

NUM_BLOCKS = 3


def sharded(
    whole: KvLayout,
    layouts: list[KvLayout],
    first_planes: Sequence[int] = (),
    *,
    is_at_once: bool = False,
    num_blocks: int = NUM_BLOCKS,
    introduce: Introduce | None = None,
) -> tuple[ShardedCache, list[KvCache]]:
    """The cache of the lead, and what each rank sees, as if it were another process; which
    introduces it to other replicas by `introduce`, if it does."""
    starts = first_planes or [0] * (len(layouts) - 1)
    of_others = zip(layouts[1:], starts, strict=True)
    memories = [SharedMemory(layout, num_blocks, start) for layout, start in of_others]
    fds = [open_place(memory.place) for memory in memories]
    own = KvCache(layouts[0], num_blocks)
    others = [
        KvCache(layout, num_blocks, memory=fd) for layout, fd in zip(layouts[1:], fds, strict=True)
    ]
    for fd in fds:
        os.close(fd)
    for memory in memories:
        memory.seal()
    shares = [
        replace(memory.share, introduction=introduce(rank.arena) if introduce is not None else b"")
        for memory, rank in zip(memories, others, strict=True)
    ]
    return ShardedCache(whole, own, shares, is_at_once=is_at_once), [own, *others]


def in_tensor_ranks(
    whole: KvLayout, num_ranks: int, num_blocks: int, introduce: Introduce | None = None
) -> ShardedCache:
    """The heads dealt out evenly."""
    each = whole.num_kv_heads // num_ranks
    starts = range(0, whole.num_kv_heads, each)
    layouts = [replace(whole, first_kv_head=start, num_kv_heads=each) for start in starts]
    return sharded(whole, layouts, num_blocks=num_blocks, introduce=introduce)[0]
