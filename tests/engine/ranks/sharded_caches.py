"""The cache of a lead, and what its ranks see of it, all in this process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace

from baton.core.kv_arena import Introduce
from baton.core.kv_layout import KvLayout
from baton.core.rank_memory import Answer, OwnRows
from baton.engine.memory.kv_cache import KvCache
from baton.engine.ranks.rank_line import RankLine, RankPort
from baton.engine.ranks.ranked_rows import CHECKSUMS, answering_checksums
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
    shares = [memory.share for memory in memories]
    if introduce is not None:
        introduced = [introduce(rank.arena, rank.rows) for rank in others]
        shares = [
            replace(share, introduction=word, line=_line(answers, rank.rows))
            for share, (word, answers), rank in zip(shares, introduced, others, strict=True)
        ]
    return ShardedCache(whole, own, shares, is_at_once=is_at_once), [own, *others]


def _line(answers: Mapping[str, Answer], rows: OwnRows) -> RankLine:
    port = RankPort({**answers, CHECKSUMS: answering_checksums(rows)})
    return RankLine(port.place, 1)


def in_tensor_ranks(
    whole: KvLayout, num_ranks: int, num_blocks: int, introduce: Introduce | None = None
) -> ShardedCache:
    """The heads dealt out evenly."""
    each = whole.num_kv_heads // num_ranks
    starts = range(0, whole.num_kv_heads, each)
    layouts = [replace(whole, first_kv_head=start, num_kv_heads=each) for start in starts]
    return sharded(whole, layouts, num_blocks=num_blocks, introduce=introduce)[0]
