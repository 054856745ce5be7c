"""Graphs when an engine starts: what they cost is tried, they are captured, and checked.

    try_graphs        two of either kind over a scratch cache, before KV takes its memory
    capture_passes    those that fit, over the cache itself; a few are compared with the model

All ranks of an engine call each at once: they have the same graphs, or none has any. Those of
passes with prompts are captured behind those that decode, into the same memory; without them such
passes run as the model is written, and the others are graphs all the same.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import torch

from baton.engine.batch.static_batch import GraphSize, PassLimits, StaticBatch
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.attempt import RanksApart
from baton.engine.mesh.ranks import ALONE, Ranks
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.cuda_graphs import DecodeGraphs, max_context_of, nobody, run_of
from baton.engine.passes.graph_capture import (
    Capture,
    CudaCapture,
    Graph,
    Outputs,
    captured,
    free_bytes,
)
from baton.engine.passes.graph_check import disagreement
from baton.engine.passes.graph_sizes import (
    GraphCosts,
    all_mixed_sizes,
    costs_of,
    largest_size,
)
from baton.engine.passes.mixed_check import mixed_disagreement
from baton.engine.passes.mixed_graphs import MixedGraphs, mixed_batch, mixed_run_of

logger = logging.getLogger(__name__)
MIXED_ARE_SLOW = "passes with prompts run without graphs, which is slower if they are short: %s"


@dataclass(frozen=True, slots=True)
class PassGraphs:
    """The graphs of a rank."""

    decode: DecodeGraphs | None = None
    mixed: MixedGraphs | None = None


@dataclass(frozen=True, slots=True)
class TriedCosts:
    decode: GraphCosts
    mixed: GraphCosts | None
    """Beside the others. None: such a pass cannot be captured, or is not to be."""


def try_graphs(  # noqa: PLR0913  # what a pass needs, and who captures and measures it
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    spare_block: int,
    capture: Capture,
    free_bytes: Callable[[], int],
    *,
    taps: AuxHiddenStates | None = None,
    ranks: Ranks = ALONE,
) -> TriedCosts | None:
    """What graphs over such a cache cost, by two of either kind, which are gone afterwards.

    `free_bytes` are those of the device with nothing kept for later use: what passes before left
    with the allocator would else count as taken by no graph, and be missing from what they cost.
    None on all ranks, said in the log, if a pass cannot be captured by one.
    """
    largest = largest_size(batch.limits)
    padding = nobody(largest.run, spare_block, cache.layout.block_size)
    kept: list[tuple[Graph, Outputs]] = []
    left = [free_bytes()]
    try:
        for num_requests in (largest.num_requests, -(-largest.num_requests // 2)):
            run = run_of(model, cache, batch, [padding] * num_requests, taps)
            kept.append(captured(capture, run, ranks))
            left.append(free_bytes())
    except RanksApart:
        raise
    except RuntimeError as error:
        logger.warning("decode passes run without graphs, which is slower: %s", error)
        return None
    output_bytes = sum([rows[0].nbytes for rows in kept[0][1]])
    return TriedCosts(
        costs_of(left[0] - left[1], largest, left[1] - left[2], output_bytes),
        _try_mixed(model, cache, batch.limits, spare_block, capture, free_bytes, taps, ranks),
    )


def _try_mixed(  # noqa: PLR0913  # as above
    model: Decoder,
    cache: KvCache,
    limits: PassLimits,
    spare_block: int,
    capture: Capture,
    free_bytes: Callable[[], int],
    taps: AuxHiddenStates | None,
    ranks: Ranks,
) -> GraphCosts | None:
    """The same of passes with prompts, while the others are there."""
    longest = max_context_of(model, limits, cache)
    sizes = [size for size in all_mixed_sizes(limits) if size <= longest]
    if not sizes or not model.is_mixed_capturable:
        return None
    batch = mixed_batch(limits, cache.layout.block_size, cache.device)
    kept: list[tuple[Graph, Outputs]] = []
    left = [free_bytes()]
    try:
        for num_tokens in (sizes[-1], -(-sizes[-1] // 2)):
            run = mixed_run_of(model, cache, batch, num_tokens, spare_block, taps)
            kept.append(captured(capture, run, ranks))
            left.append(free_bytes())
    except RanksApart:
        raise
    except RuntimeError as error:
        logger.warning(MIXED_ARE_SLOW, error)
        return None
    output_bytes = sum([rows[0].nbytes for rows in kept[0][1]])
    first = GraphSize(sizes[-1])
    return costs_of(left[0] - left[1], first, left[1] - left[2], output_bytes)


@torch.inference_mode()
def capture_passes(
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    taps: AuxHiddenStates | None = None,
    ranks: Ranks = ALONE,
) -> PassGraphs:
    """None where there is no CUDA; or, said in the log, if a pass cannot be captured by some rank.

    Nothing lies in the cache yet, nor does afterwards. Raises what `checked_graphs` raises.
    """
    if cache.device.type != "cuda" or cache.spare_block is None:
        return PassGraphs()
    if not model.is_capturable:
        logger.warning("decode passes run without graphs, which is slower: lengths are looked at")
        return PassGraphs()
    if batch.limits.graph_sizes == ():
        return PassGraphs()
    free_before = free_bytes(cache.device)
    capture = CudaCapture(cache.device)
    graphs = checked_graphs(model, cache, batch, cache.spare_block, capture, taps, ranks)
    if graphs is None:
        return PassGraphs()
    sizes, free_between = [tuple(size) for size in graphs.sizes], free_bytes(cache.device)
    num_bytes = free_before - free_between
    logger.info("graphs of (requests, tokens of each) %s take %d bytes", sizes, num_bytes)
    mixed = checked_mixed(model, cache, batch.limits, cache.spare_block, capture, taps, ranks)
    if mixed is not None:
        num_bytes = free_between - free_bytes(cache.device)
        logger.info("graphs of %s tokens with prompts take %d bytes", mixed.sizes, num_bytes)
    return PassGraphs(graphs, mixed)


def checked_mixed(  # noqa: PLR0913  # what a pass needs, who captures it, and who else does
    model: Decoder,
    cache: KvCache,
    limits: PassLimits,
    spare_block: int,
    capture: Capture,
    taps: AuxHiddenStates | None = None,
    ranks: Ranks = ALONE,
) -> MixedGraphs | None:
    """As `checked_graphs`, of passes with prompts."""
    longest = max_context_of(model, limits, cache)
    sizes = all_mixed_sizes(limits) if limits.mixed_sizes is None else limits.mixed_sizes
    if not model.is_mixed_capturable or not any(size <= longest for size in sizes):
        return None
    batch = mixed_batch(limits, cache.layout.block_size, cache.device)
    reason: str | None
    try:
        graphs = MixedGraphs(model, cache, batch, spare_block, capture, taps=taps, ranks=ranks)
        reason = mixed_disagreement(graphs, model, cache, ranks)
    except RanksApart:
        raise
    except RuntimeError as error:
        reason = str(error)
    if reason:
        logger.warning(MIXED_ARE_SLOW, reason)
        return None
    return graphs


def checked_graphs(  # noqa: PLR0913  # what a pass needs, who captures it, and who else does
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    spare_block: int,
    capture: Capture,
    taps: AuxHiddenStates | None = None,
    ranks: Ranks = ALONE,
) -> DecodeGraphs | None:
    """Graphs of the sizes that all ranks could capture, once some of them were compared with the
    model; None on all ranks, said in the log, if there is none or one of them is wrong.

    Raises InvalidConfig if several ranks cannot even launch a pass, and RanksApart.
    """
    reason: str | None
    try:
        graphs = DecodeGraphs(model, cache, batch, spare_block, capture, taps=taps, ranks=ranks)
        reason = disagreement(graphs, model, cache, spare_block, ranks)
    except RanksApart:
        raise
    except RuntimeError as error:
        reason = str(error)
    if reason:
        logger.warning("decode passes run without graphs, which is slower: %s", reason)
        return None
    return graphs
