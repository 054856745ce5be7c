"""Decode passes as CUDA graphs, one for each of a few numbers of requests.

    requests of the pass     1 2 3 4 5 ... 8 9 ...           each one new token
    graph that is replayed   1 2 4 4 8 ... 8 16 ...          captured when the engine starts

    fill  ->  StaticBatch, pinned --asynchronously--> device  ->  replay  ->  hidden, logits, taps

A pass of fewer requests than its graph is made up with rows that stand for nobody: token 0 at
position 0 of the spare block, which no pool counts, so that what they write is nobody's. Everything
else (prompts, speculation, more requests than were captured) runs as the model is written.

Which sizes there are follows from what graphs cost, which is tried before KV takes its memory: as
many as MAX_GRAPH_BYTES hold (`baton.engine.passes.graph_sizes`). All share one pool of memory, the
largest being captured first; results lie there until the next pass. `Capture` is what CUDA does, so
that the rest is tested without it.

Tensor ranks capture together, as they compute: their sums are in the graphs, and so is the head.
All of them have the same graphs: one that not all have memory for is nobody's.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from baton.engine.batch.batch import Batch, Chunk, ignore_layer
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import StaticBatch
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.ranks import ALONE, Ranks
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import Taps
from baton.engine.passes.graph_capture import Capture, Graph, Outputs, captured
from baton.engine.passes.graph_sizes import graph_sizes

logger = logging.getLogger(__name__)


class DecodeGraphs:
    """Not thread-safe: there is one pass at a time."""

    def __init__(  # noqa: PLR0913  # what a pass needs, who captures it, and who else does
        self,
        model: Decoder,
        cache: KvCache,
        batch: StaticBatch,
        spare_block: int,
        capture: Capture,
        *,
        taps: Taps | None = None,
        ranks: Ranks = ALONE,
    ) -> None:
        """Capture graphs of the sizes that the batch's limits name; those that not all `ranks` have
        memory for are left out. `taps` are in all of them: what they copy, where nobody reads it,
        takes less than graphs without them would.

        Raises RuntimeError if there is none, or one cannot be captured at all; and what else
        `captured` raises.
        """
        self.limits = batch.limits
        self.taps = taps
        self._batch = batch
        self._padding = Chunk((0,), 0, (spare_block,), 1)
        self._capture = capture
        self._graphs: dict[int, tuple[Graph, Outputs]] = {}
        self._last: tuple[Tensor, Tensor] | None = None
        self._decoding: Sequence[Chunk] | None = None
        """The decoding whose rows, and rows for nobody behind them, lie in the batch."""
        sizes = batch.limits.graph_sizes
        sizes = graph_sizes(batch.limits.max_decodes) if sizes is None else sizes
        for size in reversed(sizes):
            run = run_of(model, cache, batch, [self._padding] * size, taps)
            try:
                self._graphs[size] = captured(capture, run, ranks)
            except torch.OutOfMemoryError as error:
                logger.warning("no memory for the graph of %d requests: %s", size, error)
        if not self._graphs:
            raise RuntimeError("no memory for any graph")
        self.sizes = tuple(size for size in sizes if size in self._graphs)
        """Requests that there are graphs for, rising."""

    def size_for(self, chunks: Sequence[Chunk]) -> int | None:
        """The size of the graph for this pass, if there is one."""
        size = next((size for size in self.sizes if size >= len(chunks)), None)
        if size is None or not self._batch.fits(chunks):
            return None
        is_decode = isinstance(chunks, Decoding) or all(
            len(chunk.tokens) == 1 == chunk.num_outputs for chunk in chunks
        )
        return size if is_decode else None

    def forward(self, chunks: Sequence[Chunk], size: int) -> Tensor:
        """The hidden states [S, D], by the graph of that `size`."""
        self._capture.await_upload()
        self._fill(chunks, size)
        self._capture.uploading()
        graph, outputs = self._graphs[size]
        graph.replay()
        hidden, logits, *tapped = [rows[: len(chunks)] for rows in outputs]
        if self.taps is not None and self.taps.is_on:
            self.taps.found = tapped
        self._last = hidden, logits
        return hidden

    def logits_of(self, hidden: Tensor) -> Tensor | None:
        """Computed in the same graph; None for other hidden states than the last pass's."""
        if self._last is None or hidden is not self._last[0]:
            return None
        return self._last[1]

    def _fill(self, chunks: Sequence[Chunk], size: int) -> None:
        """Rows for nobody stay as they are while the requests before them go on decoding."""
        is_decoding = isinstance(chunks, Decoding)
        if not (is_decoding and chunks is self._decoding):
            self._batch.fill([*chunks, *[self._padding] * (size - len(chunks))])
            self._decoding = chunks if is_decoding else None
        if is_decoding:
            self._batch.fill(chunks)


def run_of(
    model: Decoder,
    cache: KvCache,
    static: StaticBatch,
    chunks: Sequence[Chunk],
    taps: Taps | None,
) -> Callable[[], Outputs]:
    """A pass of so many requests, each as long as any may become."""
    batch = _as_long_as_may_be(static.fill(chunks), static)
    own = None if taps is None else Taps(taps.layers)

    def run() -> Outputs:
        hidden = model(batch, cache.layers, ignore_layer, own)
        return (hidden, model.logits(hidden), *(() if own is None else own.found))

    return run


def _as_long_as_may_be(batch: Batch, static: StaticBatch) -> Batch:
    """Grids that follow from lengths then fit all passes; what is beyond a context ends at once."""
    sequences, max_blocks = batch.sequences, static.limits.max_blocks
    tables = sequences.block_tables
    wide = tables.as_strided((len(tables), max_blocks), tables.stride(), tables.storage_offset())
    max_context_len = max_blocks * sequences.block_size
    return replace(
        batch,
        sequences=replace(sequences, block_tables=wide, max_context_len=max_context_len),
    )
