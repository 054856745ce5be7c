"""Decode graphs when an engine starts: what they cost is tried, they are captured, and checked.

    try_graphs          two of them over a scratch cache, before KV takes its memory
    capture_decoding    those that fit, over the cache itself; a few are compared with the model

All ranks of an engine call each at once: they have the same graphs, or none has any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch

from baton.engine.batch.static_batch import StaticBatch
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.attempt import RanksApart
from baton.engine.mesh.ranks import ALONE, Ranks
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import Taps
from baton.engine.passes.cuda_graphs import DecodeGraphs, nobody, run_of
from baton.engine.passes.graph_capture import (
    Capture,
    CudaCapture,
    Graph,
    Outputs,
    captured,
    free_bytes,
)
from baton.engine.passes.graph_check import disagreement
from baton.engine.passes.graph_sizes import GraphCosts, costs_of, largest_size

logger = logging.getLogger(__name__)


def try_graphs(  # noqa: PLR0913  # what a pass needs, and who captures and measures it
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    spare_block: int,
    capture: Capture,
    free_bytes: Callable[[], int],
    *,
    taps: Taps | None = None,
    ranks: Ranks = ALONE,
) -> GraphCosts | None:
    """What graphs over such a cache cost, by two of them, which are gone afterwards.

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
    return costs_of(left[0] - left[1], largest, left[1] - left[2], output_bytes)


@torch.inference_mode()
def capture_decoding(
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    taps: Taps | None = None,
    ranks: Ranks = ALONE,
) -> DecodeGraphs | None:
    """None where there is no CUDA; or, said in the log, if a pass cannot be captured by some rank.

    Nothing lies in the cache yet, nor does afterwards. Raises what `checked_graphs` raises.
    """
    if cache.device.type != "cuda" or cache.spare_block is None:
        return None
    if not model.is_capturable:
        logger.warning("decode passes run without graphs, which is slower: lengths are looked at")
        return None
    if batch.limits.graph_sizes == ():
        return None
    free_before = free_bytes(cache.device)
    capture = CudaCapture(cache.device)
    graphs = checked_graphs(model, cache, batch, cache.spare_block, capture, taps, ranks)
    if graphs is not None:
        num_bytes = free_before - free_bytes(cache.device)
        sizes = [tuple(size) for size in graphs.sizes]
        logger.info("graphs of (requests, tokens of each) %s take %d bytes", sizes, num_bytes)
    return graphs


def checked_graphs(  # noqa: PLR0913  # what a pass needs, who captures it, and who else does
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    spare_block: int,
    capture: Capture,
    taps: Taps | None = None,
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
