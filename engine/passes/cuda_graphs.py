"""Decode passes as CUDA graphs, captured for some numbers of requests and of tokens per request.

    requests of the pass     1 2 3 4 5 ... 8 9 ...           each one new token
    graph that is replayed   1 2 4 4 8 ... 8 16 ...          captured when the engine starts

    drafts to be verified    a  a1 a2 a3 | b  b1 | c  c1 c2
    in 4 requests of 4       a  a1 a2 a3 | b  b1 -  - | c  c1 c2 - | 0 0 0 0
    outputs                  a  a1 a2 a3   b  b1   c  c1 c2   then those of - and 0

    fill  ->  StaticBatch, pinned --asynchronously--> device  ->  replay  ->  hidden, logits, taps

A pass of fewer requests than its graph is padded with rows that belong to no request (0): token 0
at the first positions of the spare block, which no pool allocates. A request of fewer tokens than
the graph's is padded with tokens (-) as if they were drafts to be rejected: their KV comes after
all known tokens of the request, in blocks that it alone holds or in the spare block, and no token
before them attends to it. Passes with prompts have graphs of their own
(`baton.engine.passes.mixed_graphs`). Passes with more requests or drafts than were captured run
without a graph.

The captured sizes depend on the memory of graphs, which is measured before the KV cache is
allocated: as many sizes as fit into MAX_GRAPH_BYTES (`baton.engine.passes.graph_sizes`). All graphs
share one memory pool, and the largest is captured first; outputs stay there until the next pass.
`Capture` wraps the CUDA calls, so that the rest can be tested without a GPU.

Tensor ranks capture together: graphs contain their all-reduces, and the output head. All ranks have
the same graphs: one that some rank has no memory for is left out on all.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from baton.engine.batch.batch import Chunk
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import GraphSize, StaticBatch
from baton.engine.passes.captured_model import CapturedModel
from baton.engine.passes.graph_capture import Graph, Outputs
from baton.engine.passes.graph_sizes import all_sizes

logger = logging.getLogger(__name__)
FEW_ROWS = 128
"""Up to this number of rows a pass takes hardly longer than reading the weights, so that padding is
nearly free."""


class DecodeGraphs:
    """The graphs of decode passes. Not thread-safe: there is one pass at a time."""

    def __init__(self, captured: CapturedModel, batch: StaticBatch) -> None:
        """Capture graphs of the sizes in the batch's limits. Sizes that some rank has no memory for
        are left out.

        Raises RuntimeError if no graph is left or capturing fails for another reason, and what
        `CapturedModel.graph_of` raises otherwise.
        """
        self.captured = captured
        self.limits = batch.limits
        self._batch = batch
        self.max_context = captured.max_context(batch.limits)
        """Most tokens of a request, padding included."""
        self._graphs: dict[GraphSize, tuple[Graph, Outputs]] = {}
        self._last: tuple[Tensor, Tensor] | None = None
        self._decoding: Sequence[Chunk] | None = None
        """The decoding whose rows, followed by padding rows, lie in the batch."""
        sizes = batch.limits.graph_sizes
        sizes = all_sizes(batch.limits) if sizes is None else sizes
        sizes = tuple(size for size in sizes if size.run <= self.max_context)
        sizes = tuple(sorted(sizes, key=lambda size: size.num_rows))
        for size in reversed(sizes):
            run = decode_run(captured, batch, size)
            try:
                self._graphs[size] = captured.graph_of(run)
            except torch.OutOfMemoryError as error:
                logger.warning("no memory for the graph of %s: %s", size, error)
        if not self._graphs:
            raise RuntimeError("no memory for any graph")
        self.sizes = tuple(size for size in sizes if size in self._graphs)
        """The sizes that there are graphs for, fewest rows first."""

    def size_for(self, chunks: Sequence[Chunk]) -> GraphSize | None:
        """The size of the smallest graph for this pass; None if there is none."""
        is_decoding = isinstance(chunks, Decoding)
        longest = 1 if is_decoding else max([len(chunk.tokens) for chunk in chunks])
        for size in self.sizes:
            if size.num_requests >= len(chunks) and size.run >= longest:
                break
        else:
            return None
        if longest > 1:
            return size if self._verifies(chunks, size) else None
        if size.run > 1 or not self._batch.fits(chunks):
            return None
        is_decode = is_decoding or all(chunk.num_outputs == 1 for chunk in chunks)
        return size if is_decode else None

    def forward(self, chunks: Sequence[Chunk], size: GraphSize) -> Tensor:
        """The hidden states [S, D] of a pass, computed by the graph of `size`."""
        self.captured.capture.await_upload()
        num_outputs = self._fill(chunks, size)
        self.captured.capture.uploading()
        graph, outputs = self._graphs[size]
        graph.replay()
        hidden, logits, *tapped = [rows[:num_outputs] for rows in outputs]
        taps = self.captured.taps
        if taps is not None and taps.is_on:
            taps.found = tapped
        self._last = hidden, logits
        return hidden

    def logits_of(self, hidden: Tensor) -> Tensor | None:
        """The logits [S, V] that the last graph computed; None if `hidden` is not its result."""
        if self._last is None or hidden is not self._last[0]:
            return None
        return self._last[1]

    def _verifies(self, chunks: Sequence[Chunk], size: GraphSize) -> bool:
        """Whether a pass that verifies drafts may use a graph of `size`: outputs of all tokens are
        wanted, padding fits into each request's context, and there is not too much of it."""
        num_tokens = 0
        for tokens, start, _, num_outputs, *_ in chunks:
            num_tokens += len(tokens)
            if num_outputs != len(tokens) or start + size.run > self.max_context:
                return False
        return size.num_rows <= max(FEW_ROWS, 2 * num_tokens)

    def _fill(self, chunks: Sequence[Chunk], size: GraphSize) -> int:
        """Write the pass and its padding into the batch; returns how many of the outputs, the first
        ones, belong to requests. Padding rows are not written again while the same requests go on
        decoding."""
        num_missing = size.num_requests - len(chunks)
        filler = [self.captured.padding(size.run)] * num_missing
        if size.run > 1:
            self._decoding = None
            padded = [self._padded(chunk, size.run) for chunk in chunks]
            lengths = [len(chunk.tokens) for chunk in chunks]
            self._batch.fill([*padded, *filler], _padding_last(lengths, size))
            return sum(lengths)
        is_decoding = isinstance(chunks, Decoding)
        if not (is_decoding and chunks is self._decoding):
            self._batch.fill([*chunks, *filler])
            self._decoding = chunks if is_decoding else None
        if is_decoding:
            self._batch.fill(chunks)
        return len(chunks)

    def _padded(self, chunk: Chunk, run: int) -> Chunk:
        """`chunk`, padded to `run` tokens."""
        tokens, start, blocks, _, *further = chunk
        num_blocks = -(-(start + run) // self.captured.block_size)
        if len(blocks) < num_blocks:
            blocks = [*blocks, *[self.captured.spare_block] * (num_blocks - len(blocks))]
        return Chunk([*tokens, *[0] * (run - len(tokens))], start, blocks, run, *further)


def _padding_last(lengths: Sequence[int], size: GraphSize) -> list[int]:
    """The rows of a padded pass, reordered: first those of the first `lengths` tokens of each
    request, then the padding."""
    rows: list[int] = []
    others: list[int] = []
    for request, length in enumerate(lengths):
        first = request * size.run
        rows += range(first, first + length)
        others += range(first + length, first + size.run)
    return [*rows, *others, *range(len(lengths) * size.run, size.num_rows)]


def decode_run(
    captured: CapturedModel, static: StaticBatch, size: GraphSize
) -> Callable[[], Outputs]:
    """A function that runs a pass of this size, all of it padding, to be captured."""
    batch = static.fill([captured.padding(size.run)] * size.num_requests)
    return captured.run_of(batch, static.limits.max_blocks, has_logits=True)
