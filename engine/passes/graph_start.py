"""Measures, captures and checks CUDA graphs when an engine starts.

    try_graphs        measures the memory of graphs by two of each kind, over a scratch cache,
                      before the KV cache is allocated
    capture_passes    captures those that fit, over the real cache; compares a few with the model

Both are collectives: all ranks of an engine call them together, and all have the same graphs or
none. Graphs of passes with prompts are captured after those that decode, into the same memory. If
that fails, passes with prompts run without graphs, and decode passes still use theirs.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

from baton.engine.batch.static_batch import GraphSize, PassLimits, StaticBatch
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.attempt import RanksApart
from baton.engine.mesh.ranks import ALONE, Ranks
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import AuxHiddenStates
from baton.engine.passes.captured_model import CapturedModel
from baton.engine.passes.cuda_graphs import DecodeGraphs, decode_run
from baton.engine.passes.graph_capture import CudaCapture, Graph, Outputs, free_bytes
from baton.engine.passes.graph_check import disagreement
from baton.engine.passes.graph_sizes import (
    GraphCosts,
    all_mixed_sizes,
    costs_of,
    largest_size,
)
from baton.engine.passes.mixed_check import mixed_disagreement
from baton.engine.passes.mixed_graphs import MixedGraphs, mixed_batch, mixed_run

logger = logging.getLogger(__name__)
DECODES_ARE_SLOW = "decode passes run without graphs, which is slower: %s"
MIXED_ARE_SLOW = "passes with prompts run without graphs, which is slower if they are short: %s"


@dataclass(frozen=True, slots=True)
class PassGraphs:
    """The graphs of a rank; None for a kind of pass that runs without."""

    decode: DecodeGraphs | None = None
    mixed: MixedGraphs | None = None


@dataclass(frozen=True, slots=True)
class TriedCosts:
    """Measured memory of graphs."""

    decode: GraphCosts
    mixed: GraphCosts | None
    """Passes with prompts, in addition to `decode`; None if they cannot be captured."""


def try_graphs(
    captured: CapturedModel, batch: StaticBatch, free_bytes: Callable[[], int]
) -> TriedCosts | None:
    """The memory of graphs over such a cache, measured by capturing two of each kind, which are
    freed afterwards. None on all ranks, with a warning in the log, if one of them cannot capture.

    `free_bytes` returns the free memory of the device with nothing cached by the allocator;
    otherwise graphs would reuse memory of earlier passes and seem to cost less.
    """
    largest = largest_size(batch.limits)
    half = largest._replace(num_requests=-(-largest.num_requests // 2))
    trial = _Trial(captured, free_bytes)
    runs = (decode_run(captured, batch, size) for size in (largest, half))
    decode = trial.costs(largest, runs, DECODES_ARE_SLOW)
    return None if decode is None else TriedCosts(decode, _try_mixed(trial, batch.limits))


def _try_mixed(trial: _Trial, limits: PassLimits) -> GraphCosts | None:
    """The memory of graphs of passes with prompts, measured while the others exist."""
    captured = trial.captured
    longest = captured.max_context(limits)
    sizes = [size for size in all_mixed_sizes(limits) if size <= longest]
    if not sizes or not captured.model.is_mixed_capturable:
        return None
    batch = mixed_batch(captured, limits)
    runs = (mixed_run(captured, batch, size) for size in (sizes[-1], -(-sizes[-1] // 2)))
    return trial.costs(GraphSize(sizes[-1]), runs, MIXED_ARE_SLOW)


class _Trial:
    """Captures graphs to measure their memory. They live as long as this object."""

    def __init__(self, captured: CapturedModel, free_bytes: Callable[[], int]) -> None:
        self.captured = captured
        self._free_bytes = free_bytes
        self._kept: list[tuple[Graph, Outputs]] = []

    def costs(
        self, largest: GraphSize, runs: Iterable[Callable[[], Outputs]], without: str
    ) -> GraphCosts | None:
        """The costs, measured by two `runs`: the largest pass, and one of half as many requests.
        None on all ranks if one cannot be captured; `without` is then logged as a warning, with the
        error."""
        first, left = len(self._kept), [self._free_bytes()]
        try:
            for run in runs:
                self._kept.append(self.captured.graph_of(run))
                left.append(self._free_bytes())
        except RanksApart:
            raise
        except RuntimeError as error:
            logger.warning(without, error)
            return None
        _, outputs = self._kept[first]
        output_bytes = sum([rows[0].nbytes for rows in outputs])
        return costs_of(left[0] - left[1], largest, left[1] - left[2], output_bytes)


@torch.inference_mode()
def capture_passes(
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    taps: AuxHiddenStates | None = None,
    ranks: Ranks = ALONE,
) -> PassGraphs:
    """Capture and check the graphs of a rank. There are none without CUDA or, with a warning in the
    log, if some rank cannot capture a pass.

    The cache must be empty, and is empty afterwards. Raises what `checked_graphs` raises.
    """
    if cache.device.type != "cuda" or cache.spare_block is None:
        return PassGraphs()
    if not model.is_capturable:
        logger.warning(DECODES_ARE_SLOW, "a layer of this model reads lengths on the host")
        return PassGraphs()
    if batch.limits.graph_sizes == ():
        return PassGraphs()
    free_before = free_bytes(cache.device)
    capture = CudaCapture(cache.device)
    captured = CapturedModel(model, cache, cache.spare_block, capture, taps, ranks)
    graphs = checked_graphs(captured, batch)
    if graphs is None:
        return PassGraphs()
    sizes, free_between = [tuple(size) for size in graphs.sizes], free_bytes(cache.device)
    num_bytes = free_before - free_between
    logger.info("graphs of (requests, tokens of each) %s take %d bytes", sizes, num_bytes)
    mixed = checked_mixed(captured, batch.limits)
    if mixed is not None:
        num_bytes = free_between - free_bytes(cache.device)
        logger.info("graphs of %s tokens with prompts take %d bytes", mixed.sizes, num_bytes)
    return PassGraphs(graphs, mixed)


def checked_mixed(captured: CapturedModel, limits: PassLimits) -> MixedGraphs | None:
    """Like `checked_graphs`, for passes with prompts."""
    longest = captured.max_context(limits)
    sizes = all_mixed_sizes(limits) if limits.mixed_sizes is None else limits.mixed_sizes
    if not captured.model.is_mixed_capturable or not any(size <= longest for size in sizes):
        return None
    batch = mixed_batch(captured, limits)
    reason: str | None
    try:
        graphs = MixedGraphs(captured, batch)
        reason = mixed_disagreement(graphs)
    except RanksApart:
        raise
    except RuntimeError as error:
        reason = str(error)
    if reason:
        logger.warning(MIXED_ARE_SLOW, reason)
        return None
    return graphs


def checked_graphs(captured: CapturedModel, batch: StaticBatch) -> DecodeGraphs | None:
    """Graphs of the sizes that all ranks could capture, after some were compared with the model.
    None on all ranks, with a warning in the log, if there is none or one of them is wrong.

    Raises InvalidConfig if one of several ranks cannot even launch a pass, and RanksApart if ranks
    no longer agree.
    """
    reason: str | None
    try:
        graphs = DecodeGraphs(captured, batch)
        reason = disagreement(graphs)
    except RanksApart:
        raise
    except RuntimeError as error:
        reason = str(error)
    if reason:
        logger.warning(DECODES_ARE_SLOW, reason)
        return None
    return graphs
