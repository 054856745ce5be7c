"""Decode passes as CUDA graphs, one for each of a few numbers of requests.

    requests of the pass     1 2 3 4 5 ... 8 9 ...           each one new token
    graph that is replayed   1 2 4 4 8 ... 8 16 ...          captured when the engine starts

    fill  ->  StaticBatch, pinned --asynchronously--> device  ->  replay  ->  hidden, logits

A pass of fewer requests than its graph is made up with rows that stand for nobody: token 0 at
position 0 of the spare block, which no pool counts, so that what they write is nobody's. Everything
else (prompts, speculation, more requests than were captured) runs as the model is written.

All graphs share one pool of memory, the largest being captured first; results lie there until the
next pass. `Capture` is what CUDA does, so that the rest is tested without it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.batch import Batch, Chunk, ignore_layer, make_batch
from baton.engine.decoding import Decoding
from baton.engine.kv_cache import KvCache
from baton.engine.models.decoder import Decoder
from baton.engine.static_batch import StaticBatch

MAX_GRAPH_BYTES = 2 << 30
"""Of the device, for all graphs; sizes that no longer fit run as the model is written."""
TOLERANCE = 2e-2
"""Relative, between a graph and the model: products may be split otherwise for other sizes."""
Outputs = tuple[Tensor, Tensor]
"""Hidden states [S, D], logits [S, V]."""
logger = logging.getLogger(__name__)


class Graph(Protocol):
    def replay(self) -> None:
        """Compute again what was captured, from what lies in the same memory now."""


class Capture(Protocol):
    @property
    def num_bytes(self) -> int:
        """What all graphs so far take."""

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]: ...

    def await_upload(self) -> None:
        """Until the device has read what was last to be uploaded."""

    def uploading(self) -> None:
        """All of a pass is on its way."""


def graph_sizes(max_requests: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then in steps of 8, of 16 from 64 on and of 32 from 256 on; the last of all."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_requests + 1, 32)]
    return (*(size for size in sizes if size < max_requests), max_requests)


class DecodeGraphs:
    """Not thread-safe: there is one pass at a time."""

    def __init__(
        self, model: Decoder, cache: KvCache, batch: StaticBatch, spare_block: int, capture: Capture
    ) -> None:
        self._batch = batch
        self._padding = Chunk((0,), 0, (spare_block,), 1)
        self._capture = capture
        self._graphs: dict[int, tuple[Graph, Outputs]] = {}
        self._last: Outputs | None = None
        self._decoding: Sequence[Chunk] | None = None
        """Whose rows, and rows for nobody behind them, lie in the batch."""
        limits = batch.limits
        for size in reversed(graph_sizes(min(limits.max_requests, limits.max_tokens))):
            self._graphs[size] = capture(self._run_of(model, cache, size))
            if capture.num_bytes > MAX_GRAPH_BYTES:
                logger.warning("graphs for fewer than %d requests would take too much", size)
                break
        self.sizes = tuple(sorted(self._graphs))
        """Requests that there are graphs for."""

    def size_for(self, chunks: Sequence[Chunk]) -> int | None:
        """Of the graph for this pass, if there is one."""
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
        graph, (hidden, logits) = self._graphs[size]
        graph.replay()
        self._last = hidden[: len(chunks)], logits[: len(chunks)]
        return self._last[0]

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

    def _run_of(self, model: Decoder, cache: KvCache, size: int) -> Callable[[], Outputs]:
        """A pass of as many requests as `size`, each as long as any may become."""
        batch = _as_long_as_may_be(self._batch.fill([self._padding] * size), self._batch)

        def run() -> Outputs:
            hidden = model(batch, cache.arenas, ignore_layer)
            return hidden, model.logits(hidden)

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


class CudaCapture:
    """CUDA's graphs, on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._first_free = self._num_free()

    @property
    def num_bytes(self) -> int:
        return self._first_free - self._num_free()

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        torch.cuda.synchronize(self._device)  # the batch is uploaded
        with torch.cuda.stream(self._stream):
            run()  # what is built or allocated on first use is there
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream):
            outputs = run()
        return graph, outputs

    def await_upload(self) -> None:
        self._read.synchronize()

    def uploading(self) -> None:
        self._read.record(torch.cuda.current_stream(self._device))

    def _num_free(self) -> int:
        free, _ = torch.cuda.mem_get_info(self._device)
        return free


@torch.inference_mode()
def capture_decoding(model: Decoder, cache: KvCache, batch: StaticBatch) -> DecodeGraphs | None:
    """None where there is no CUDA; or, said in the log, if a pass cannot be captured."""
    if cache.device.type != "cuda" or cache.spare_block is None:
        return None
    if not model.is_capturable:
        logger.warning("decode passes run without graphs, which is slower: lengths are looked at")
        return None
    try:
        capture = CudaCapture(cache.device)
        graphs = DecodeGraphs(model, cache, batch, cache.spare_block, capture)
        reason = disagreement(graphs, model, cache, cache.spare_block)
    except RuntimeError as error:
        reason = str(error)
    if reason:
        logger.warning("decode passes run without graphs, which is slower: %s", reason)
        return None
    logger.info("graphs of %s requests take %d bytes", graphs.sizes, capture.num_bytes)
    return graphs


def disagreement(
    graphs: DecodeGraphs, model: Decoder, cache: KvCache, spare_block: int
) -> str | None:
    """What is wrong with the graphs, by a pass over the spare block."""
    size = graphs.sizes[0]
    chunks = [Chunk((1,), 0, (spare_block,), 1)] * size
    hidden = graphs.forward(chunks, size).float()
    batch = make_batch(chunks, cache.layout.block_size, cache.device)
    wanted: Tensor = model(batch, cache.arenas, ignore_layer).float()
    limit = TOLERANCE * float(wanted.abs().max())
    if bool(((hidden - wanted).abs() <= limit).all()):
        return None
    return "a graph gave something else than the model"
