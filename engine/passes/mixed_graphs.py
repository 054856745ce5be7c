"""Passes with prompts as CUDA graphs, one for each of a few numbers of tokens.

    tokens of the pass         1 .. 32   33 .. 64   65 .. 96  ...      of any requests
    graph that is replayed          32         64         96           captured at the start

    a prompt and two that decode      a a1 a2 a3 | b | c
    in a graph of 8 tokens            a a1 a2 a3 | b | c | 0 0 |  |  |      and so many requests
    hidden states                     of the tokens that are wanted, then of arbitrary ones

Padding tokens after the last belong to one padding request, in the spare block; requests after that
one have no tokens. Kernels read on the device which tokens belong to which request, so a graph fits
any division into requests of any length. The output head is not in the graph, because the number of
rows that it is needed for varies.

Computing a pass of so few tokens takes less time than launching its kernels. Larger passes run
without a graph, and so do passes with latent attention in expanded form, which graphs do not have.
`StaticBatch`, `Capture` and the agreement of ranks are as for decode passes
(`baton.engine.passes.cuda_graphs`).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import PassLimits, StaticBatch
from baton.engine.passes.captured_model import CapturedModel
from baton.engine.passes.cuda_graphs import FEW_ROWS
from baton.engine.passes.expanded import has_expanded
from baton.engine.passes.graph_capture import Graph, Outputs
from baton.engine.passes.graph_sizes import all_mixed_sizes

logger = logging.getLogger(__name__)


def mixed_batch(captured: CapturedModel, limits: PassLimits) -> StaticBatch:
    """The batch that these graphs read. It has one more request than the limits, for padding, and
    the tokens of the largest graph."""
    most = max(all_mixed_sizes(limits), default=1)
    limits = replace(limits, max_requests=limits.max_requests + 1, max_tokens=most)
    return StaticBatch(
        limits,
        captured.block_size,
        captured.cache.device,
        has_adapters=captured.model.adapters.exist,
    )


class MixedGraphs:
    """The graphs of passes with prompts. Not thread-safe: there is one pass at a time."""

    def __init__(self, captured: CapturedModel, batch: StaticBatch) -> None:
        """Capture graphs of the sizes in the limits of `batch`, a `mixed_batch`, the largest first.
        Sizes that some rank has no memory for are left out.

        Raises RuntimeError if no graph is left or capturing fails for another reason, and what
        `CapturedModel.graph_of` raises otherwise.
        """
        self.captured = captured
        self.max_requests = batch.limits.max_requests - 1
        self.max_context = captured.max_context(batch.limits)
        self._batch = batch
        dtype = captured.cache.dtype
        assert dtype is not None, "the cache of a model has a dtype"
        self._item_bytes: int = getattr(torch, dtype).itemsize
        self._graphs: dict[int, tuple[Graph, Outputs]] = {}
        sizes = batch.limits.mixed_sizes
        sizes = all_mixed_sizes(batch.limits) if sizes is None else sizes
        sizes = tuple(size for size in sizes if size <= self.max_context)
        for size in reversed(sizes):
            run = mixed_run(captured, batch, size)
            try:
                self._graphs[size] = captured.graph_of(run)
            except torch.OutOfMemoryError as error:
                logger.warning("no memory for the graph of %d tokens with prompts: %s", size, error)
        if not self._graphs:
            raise RuntimeError("no memory for any graph of passes with prompts")
        self.sizes = tuple(size for size in sizes if size in self._graphs)
        """Numbers of tokens that there are graphs for, fewest first."""

    def size_for(self, chunks: Sequence[Chunk]) -> int | None:
        """The size of the smallest graph for this pass; None if there is none, or if it would need
        more padding than is nearly free."""
        if isinstance(chunks, Decoding) or len(chunks) > self.max_requests:
            return None
        num_tokens = 0
        for tokens, start, *_ in chunks:
            num_tokens += len(tokens)
            if start + len(tokens) > self.max_context:
                return None
        size = next((size for size in self.sizes if size >= num_tokens), None)
        if size is None or size > max(FEW_ROWS, num_tokens * 5 // 4):
            return None
        latent = self.captured.model.latent
        return None if has_expanded(chunks, latent, self._item_bytes) else size

    def forward(self, chunks: Sequence[Chunk], size: int) -> Tensor:
        """The hidden states [S, D] of a pass, computed by the graph of `size`."""
        self.captured.capture.await_upload()
        num_outputs = self._fill(chunks, size)
        self.captured.capture.uploading()
        graph, outputs = self._graphs[size]
        graph.replay()
        hidden, *tapped = [rows[:num_outputs] for rows in outputs]
        taps = self.captured.taps
        if taps is not None and taps.is_on:
            taps.found = tapped
        return hidden

    def padded(self, chunks: Sequence[Chunk], size: int) -> list[Chunk]:
        """The pass, padded to `size` tokens. Padding has no outputs."""
        padding = size - sum(len(chunk.tokens) for chunk in chunks)
        filler = [self.captured.padding(padding)] if padding else []
        return [*chunks, *(chunk._replace(num_outputs=0) for chunk in filler)]

    def _fill(self, chunks: Sequence[Chunk], size: int) -> int:
        """Write the padded pass into the batch; returns how many of the outputs, the first ones,
        belong to requests."""
        rows: list[int] = []
        stop = 0
        for tokens, _, _, num_outputs, *_ in chunks:
            stop += len(tokens)
            rows += range(stop - num_outputs, stop)
        behind = [0] * (size - len(rows))
        self._batch.fill(self.padded(chunks, size), [*rows, *behind], self.max_requests + 1)
        return len(rows)


def mixed_run(
    captured: CapturedModel, static: StaticBatch, num_tokens: int
) -> Callable[[], Outputs]:
    """A function that runs a pass of `num_tokens` padding tokens, to be captured."""
    padding = [captured.padding(num_tokens)]
    batch = static.fill(padding, [0] * num_tokens, static.limits.max_requests)
    batch = replace(batch, sequences=replace(batch.sequences, is_captured=True))
    return captured.run_of(batch, static.limits.max_blocks, has_logits=False)
