"""Assembles the runners of a replica's ranks around one cache.

all      load their share            compare fingerprints: they must be of the same model
lead     decides how many blocks     makes the memory of the others' KV, on CPUs
others   open that memory; or, on GPUs, let the lead map theirs (CUDA IPC: one host)
         and publish how other replicas reach it, if these can do so without the lead,
         and the address at which the lead asks them to process their own blocks (rank_line.py)
"""

from __future__ import annotations

import logging
import os
import pickle
from array import array
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import reduce_tensor

from baton.core.errors import InvalidConfig
from baton.core.kv_arena import Introduce
from baton.core.kv_layout import KvLayout
from baton.engine.cache_plan import CachePlan
from baton.engine.checkpoint.load import LoadedModel
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.ranks import RankGroup
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.runner import ModelRunner
from baton.engine.ranks.context import ContextRunner
from baton.engine.ranks.lead import LeadRunner
from baton.engine.ranks.pipeline import StageRunner
from baton.engine.ranks.rank_line import RankLine, RankPort
from baton.engine.ranks.ranked_rows import CHECKSUMS, answering_checksums
from baton.engine.ranks.sharded_cache import ShardedCache
from baton.engine.ranks.shares import Share, SharedMemory, open_place

KV = "kv"
"""The key under which a rank publishes the location of its KV."""
INTRODUCTION = "kv introduction"
"""The key under which a rank publishes how other replicas reach its memory."""
LINE = "kv line"
"""The key under which a rank publishes the address for the lead's questions; empty: none."""

log = logging.getLogger(__name__)


def lead_runner(
    loaded: LoadedModel, plan: CachePlan, taps: AuxHiddenStates | None = None
) -> LeadRunner:
    """The lead's runner, with as many blocks as all ranks have room for. `taps` receive the stream
    of all layers and tokens, wherever computed."""
    ranks = _ranks_of_engine(loaded)
    plan = plan.with_blocks(_least(plan.num_blocks, ranks))
    layout = plan.layout
    own = _own_cache(loaded, plan)
    is_on_cpu = plan.device == "cpu"
    if is_on_cpu:
        shares = _make_memory(loaded, layout, plan.num_blocks, ranks)
    else:
        shares = [_map_memory(loaded, layout, rank, ranks) for rank in range(1, ranks.size)]
    shares = [
        replace(share, introduction=ranks.word_of(INTRODUCTION, rank), line=line_to(ranks, rank))
        for rank, share in enumerate(shares, start=1)
    ]
    if not is_on_cpu:
        _least(plan.num_blocks, ranks)  # like the others, since capturing passes needs all ranks
    return LeadRunner(_own_runner(loaded, own, taps), ShardedCache(layout, own, shares))


def following_runner(
    loaded: LoadedModel, plan: CachePlan, introduce: Introduce | None = None
) -> ModelRunner:
    """The runner for `follow`."""
    ranks = _ranks_of_engine(loaded)
    plan = plan.with_blocks(_least(plan.num_blocks, ranks))
    if plan.device == "cpu":
        places: Sequence[tuple[int, int]] = pickle.loads(ranks.word_of(KV, 0))
        fd = open_place(places[ranks.rank - 1])
        cache = _own_cache(loaded, plan, fd)
        os.close(fd)
    else:
        cache = _own_cache(loaded, plan)
        handles = [reduce_tensor(plane) for plane in cache.planes]  # type: ignore[no-untyped-call]
        ranks.leave_word(KV, pickle.dumps(handles))
    introduction, place = b"", b""
    if introduce is not None:
        introduction, answers = introduce(cache.arena, cache.rows)
        port = RankPort({**answers, CHECKSUMS: answering_checksums(cache.rows)})
        place = pickle.dumps(port.place)
    ranks.leave_word(INTRODUCTION, introduction)
    ranks.leave_word(LINE, place)
    _least(plan.num_blocks, ranks)  # the lead may close its handle now
    return _own_runner(loaded, cache)


def line_to(ranks: RankGroup, rank: int) -> RankLine | None:
    """None: the lead accesses that rank's memory itself."""
    place = ranks.word_of(LINE, rank)
    try:
        return RankLine(pickle.loads(place), rank) if place else None
    except OSError as error:  # as between containers, each with a network of its own
        log.warning("rank %d cannot be asked, so the lead moves its KV as well: %s", rank, error)
        return None


def _own_cache(loaded: LoadedModel, plan: CachePlan, memory: int | None = None) -> KvCache:
    return KvCache(
        loaded.own(plan.layout),
        plan.num_blocks,
        plan.device,
        memory,
        dtype=loaded.info.dtype,
        limits=plan.limits,
    )


def _own_runner(
    loaded: LoadedModel, cache: KvCache, taps: AuxHiddenStates | None = None
) -> ModelRunner:
    if loaded.stages:
        return StageRunner(loaded, cache, taps)
    runs = ContextRunner if loaded.groups.context.size > 1 else ModelRunner
    return runs(loaded, cache, taps)


def _make_memory(
    loaded: LoadedModel, layout: KvLayout, num_blocks: int, ranks: RankGroup
) -> list[Share]:
    memories = [
        SharedMemory(loaded.share(layout, rank), num_blocks, loaded.first_plane(layout, rank))
        for rank in range(1, ranks.size)
    ]
    ranks.leave_word(KV, pickle.dumps([memory.place for memory in memories]))
    _least(num_blocks, ranks)
    for memory in memories:
        memory.seal()
    return [memory.share for memory in memories]


def _map_memory(loaded: LoadedModel, layout: KvLayout, rank: int, ranks: RankGroup) -> Share:
    """Map the KV of another rank's device. The published handle is trusted, since it is from our
    own replica."""
    handles: list[tuple[Callable[..., Tensor], tuple[Any, ...]]] = pickle.loads(
        ranks.word_of(KV, rank)
    )
    planes = [rebuild(*details).view(torch.uint8).flatten(1) for rebuild, details in handles]
    return Share(loaded.share(layout, rank), planes, loaded.first_plane(layout, rank))


def check_alike(loaded: LoadedModel) -> None:
    """Call on all ranks. Raises InvalidConfig if they have loaded different models."""
    ranks = loaded.groups.everyone
    assert isinstance(ranks, RankGroup), "one rank is like itself"
    words = array("q")
    words.frombytes(loaded.info.fingerprint[:16])
    found = ranks.gather(words)
    odd = [rank for rank, each in enumerate(found) if each != found[0]]
    if odd:
        raise InvalidConfig(
            f"ranks {odd} loaded a different model from the lead; give all ranks the same folder, "
            "and if their CPUs differ (AVX-512 BF16, matrix tiles), set BATON_CPU_KERNELS to a "
            "kind that all of them support"
        )


def _ranks_of_engine(loaded: LoadedModel) -> RankGroup:
    ranks = loaded.groups.engine
    assert isinstance(ranks, RankGroup), "one rank needs nobody to settle with"
    return ranks


def _least(number: int, ranks: RankGroup) -> int:
    """The minimum over all ranks; also a barrier."""
    return min(found for (found,) in ranks.gather(array("q", (number,))))
