"""Decode passes as CUDA graphs, one for each of a few numbers of requests.

    requests of the pass     1 2 3 4 5 ... 8 9 ...           each one new token
    graph that is replayed   1 2 4 4 8 ... 8 16 ...          captured when the engine starts

    fill  ->  StaticBatch, pinned --asynchronously--> device  ->  replay  ->  hidden, logits, taps

A pass of fewer requests than its graph is made up with rows that stand for nobody: token 0 at
position 0 of the spare block, which no pool counts, so that what they write is nobody's. Everything
else (prompts, speculation, more requests than were captured) runs as the model is written.

Which sizes there are follows from what graphs cost, which is tried before KV takes its memory: as
many as MAX_GRAPH_BYTES hold, the small ones always among them, for those gain most. All share one
pool of memory, the largest being captured first; results lie there until the next pass. `Capture`
is what CUDA does, so that the rest is tested without it.

Tensor ranks capture together, as they compute: their sums are in the graphs, and so is the head.
All of them have the same graphs, or none has any.
"""

from __future__ import annotations

import logging
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import torch
from torch import Tensor

from baton.engine.batch.batch import Batch, Chunk, ignore_layer, make_batch
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.static_batch import StaticBatch
from baton.engine.memory.kv_cache import KvCache
from baton.engine.mesh.ranks import ALONE, RankGroup, Ranks
from baton.engine.models.skeleton.decoder import Decoder
from baton.engine.models.skeleton.taps import Taps

MAX_GRAPH_BYTES = 2 << 30
"""Bytes of the device, for all graphs."""
TOLERANCE = 2e-2
"""Relative, between a graph and the model: products may be split otherwise for other sizes."""
CHECKED_TOKENS = 640
"""Tokens of the longest context that graphs are checked with: several splits, and many blocks."""
Outputs = tuple[Tensor, ...]
"""Hidden states [S, D], logits [S, V], and [S, D] of each tap."""
logger = logging.getLogger(__name__)


class Graph(Protocol):
    def replay(self) -> None:
        """Compute again what was captured, from what lies in the same memory now."""


class Capture(Protocol):
    def __call__(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        """Its memory may be used again once the graph is gone."""

    def await_upload(self) -> None:
        """Wait until the device has read what was last to be uploaded."""

    def uploading(self) -> None:
        """All of a pass is on its way."""


def graph_sizes(max_requests: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then in steps of 8, of 16 from 64 on and of 32 from 256 on; the last of all."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_requests + 1, 32)]
    return (*(size for size in sizes if size < max_requests), max_requests)


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """Bytes of a device."""

    largest: int
    """The graph of the most requests, and the memory that all others compute in."""
    each_more: int

    def of(self, sizes: Sequence[int], max_requests: int) -> int:
        """What `sizes` take together: the largest in proportion to its requests."""
        if not sizes:
            return 0
        return -(-self.largest * max(sizes) // max_requests) + self.each_more * (len(sizes) - 1)


def sizes_within(
    max_requests: int, costs: GraphCosts, max_bytes: int = MAX_GRAPH_BYTES
) -> tuple[int, ...]:
    """The finest steps that fit, those in which a pass is at most doubled being the coarsest.

    If not even they do, the largest sizes go: such passes are computed for longer than it takes to
    launch them one kernel at a time.
    """
    top = max_requests
    while top:
        for sizes in (graph_sizes(top), _doubling_from((1, 3), top), _doubling_from((1,), top)):
            if costs.of(sizes, max_requests) <= max_bytes:
                return sizes
        top = (1 << (top - 1).bit_length()) // 2 if top > 1 else 0  # the power of two below
    return ()


def _doubling_from(first: Sequence[int], last: int) -> tuple[int, ...]:
    """These, twice, four times as many and so on, below the last; and that."""
    sizes = {start << power for start in first for power in range(last.bit_length())}
    return (*sorted(size for size in sizes if size < last), last)


class DecodeGraphs:
    """Not thread-safe: there is one pass at a time."""

    def __init__(
        self,
        model: Decoder,
        cache: KvCache,
        batch: StaticBatch,
        spare_block: int,
        capture: Capture,
        *,
        taps: Taps | None = None,
    ) -> None:
        """Capture graphs of the sizes that the batch's limits name. `taps` are in all of them: what
        they copy, where nobody reads it, takes less than graphs without them would."""
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
        self.sizes = graph_sizes(batch.limits.max_decodes) if sizes is None else sizes
        """Requests that there are graphs for, rising."""
        for size in reversed(self.sizes):
            run = _run_of(model, cache, batch, [self._padding] * size, taps)
            self._graphs[size] = capture(run)

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


def try_graphs(  # noqa: PLR0913  # what a pass needs, and who captures and measures it
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    spare_block: int,
    capture: Capture,
    free_bytes: Callable[[], int],
    *,
    taps: Taps | None = None,
) -> GraphCosts | None:
    """What graphs over such a cache cost, by two of them, which are gone afterwards.

    `free_bytes` are those of the device with nothing kept for later use: what passes before left
    with the allocator would else count as taken by no graph, and be missing from what they cost.
    None, said in the log, if a pass cannot be captured.
    """
    largest = batch.limits.max_decodes
    padding = Chunk((0,), 0, (spare_block,), 1)
    kept: list[tuple[Graph, Outputs]] = []
    left = [free_bytes()]
    try:
        for size in (largest, -(-largest // 2)):
            kept.append(capture(_run_of(model, cache, batch, [padding] * size, taps)))
            left.append(free_bytes())
    except RuntimeError as error:
        logger.warning("decode passes run without graphs, which is slower: %s", error)
        return None
    return GraphCosts(left[0] - left[1], left[1] - left[2])


def _run_of(
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


class CudaCapture:
    """CUDA's graphs, on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        torch.cuda.synchronize(self._device)  # the batch is uploaded
        with torch.cuda.stream(self._stream):
            run()  # what is built or allocated on first use is there
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # Other threads go on: NCCL's asks how its events are, which would else end the capture.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            outputs = run()
        return graph, outputs

    def await_upload(self) -> None:
        self._read.synchronize()

    def uploading(self) -> None:
        self._read.record(torch.cuda.current_stream(self._device))


def free_bytes(device: torch.device) -> int:
    """The free bytes of a GPU, with nothing kept for later use."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free


@torch.inference_mode()
def capture_decoding(
    model: Decoder,
    cache: KvCache,
    batch: StaticBatch,
    taps: Taps | None = None,
    ranks: Ranks = ALONE,
) -> DecodeGraphs | None:
    """None where there is no CUDA; or, said in the log, if a pass cannot be captured by some rank.

    Nothing lies in the cache yet, nor does afterwards.
    """
    if cache.device.type != "cuda" or cache.spare_block is None:
        return None
    if not model.is_capturable:
        logger.warning("decode passes run without graphs, which is slower: lengths are looked at")
        return None
    if batch.limits.graph_sizes == ():
        return None
    try:
        free_before = free_bytes(cache.device)
        capture = CudaCapture(cache.device)
        graphs = DecodeGraphs(model, cache, batch, cache.spare_block, capture, taps=taps)
        reason = disagreement(graphs, model, cache, cache.spare_block)
    except RuntimeError as error:
        reason = str(error)
    if not all(said_by_all(ranks, reason is None)):
        reason = reason or "another rank could not capture them"
    if reason:
        logger.warning("decode passes run without graphs, which is slower: %s", reason)
        return None
    num_bytes = free_before - free_bytes(cache.device)
    logger.info("graphs of %s requests take %d bytes", graphs.sizes, num_bytes)
    return graphs


def disagreement(
    graphs: DecodeGraphs, model: Decoder, cache: KvCache, spare_block: int
) -> str | None:
    """What is wrong with the graphs: the smallest, one between and the largest, over contexts from
    a single token to many blocks. The blocks that this takes are zero again afterwards.

    No size is left out once one is wrong: other ranks compute them, too."""
    sizes, taps = graphs.sizes, graphs.taps
    past, reason = _write_past(graphs, model, cache), None
    try:
        for size in sorted({sizes[0], sizes[len(sizes) // 2], sizes[-1]}):
            chunks = _checked_rows(size, past, cache, spare_block)
            hidden = graphs.forward(chunks, size)
            logits = graphs.logits_of(hidden)
            assert logits is not None
            found = (hidden, logits, *(() if taps is None else taps.found))
            batch = make_batch(chunks, cache.layout.block_size, cache.device)
            wanted: Tensor = model(batch, cache.layers, ignore_layer, taps)
            expected = (wanted, model.logits(wanted), *(() if taps is None else taps.found))
            if not all(map(_agree, found, expected)):
                reason = f"the graph of {size} requests gave something else than the model"
    finally:
        for block in range(min(cache.num_blocks, len(past) + sizes[-1])):
            for plane in range(cache.layout.num_planes):
                cache.clear_tail(block, plane, 0)
    return reason


def said_by_all(ranks: Ranks, number: int) -> list[int]:
    """What each rank says, in order; all of them have to."""
    if not isinstance(ranks, RankGroup):
        return [number]
    return [said for (said,) in ranks.gather(array("q", (int(number),)))]


def _write_past(graphs: DecodeGraphs, model: Decoder, cache: KvCache) -> range:
    """The blocks of a context, computed by the model: half of those that there are, at most."""
    size = cache.layout.block_size
    num_wanted = -(-CHECKED_TOKENS // size)
    blocks = range(min(num_wanted, graphs.limits.max_blocks - 1, cache.num_blocks // 2))
    if blocks:
        tokens = [1 + place % 7 for place in range(len(blocks) * size)]
        batch = make_batch([Chunk(tokens, 0, blocks, 0)], size, cache.device)
        model(batch, cache.layers, ignore_layer)
    return blocks


def _checked_rows(size: int, past: range, cache: KvCache, spare_block: int) -> list[Chunk]:
    """Requests that share a past, each up to another block, and then have one of their own.

    Those that no block is left for are as rows for nobody.
    """
    rows = []
    for row, own in zip(range(size), range(len(past), cache.num_blocks), strict=False):
        shared = past[: len(past) - row * 5 % (len(past) + 1)]
        token = 1 + row % 5
        rows.append(Chunk((token,), len(shared) * cache.layout.block_size, (*shared, own), 1))
    return rows + [Chunk((0,), 0, (spare_block,), 1)] * (size - len(rows))


def _agree(found: Tensor, wanted: Tensor) -> bool:
    limit = TOLERANCE * float(wanted.float().abs().max())
    return bool(((found.float() - wanted.float()).abs() <= limit).all())
