"""Chooses the sizes of passes that are captured as CUDA graphs: as many as their memory allows.

    decode passes        1, 2, 4, 8 ... requests of one token
    drafts to verify     1, 2, 4, 8 ... requests of 2, 3, 5, 9 ... tokens, up to MAX_DRAFTED_ROWS
    with prompts         32, 64, 96 ... tokens of any requests, up to MAX_MIXED_TOKENS

Passes of few requests gain most from a graph, so their graphs are kept longest if memory is short.
Graphs with prompts are given up first, then those that verify drafts, then those that decode.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton.engine.batch.static_batch import GraphSize, PassLimits
from baton.kernels.paging.sequences import MAX_RUN

MAX_GRAPH_BYTES = 2 << 30
"""Most bytes of device memory for all graphs."""
MAX_DRAFTED_ROWS = 256
"""Most tokens of a captured pass that verifies drafts. Computing larger passes takes longer than
launching their kernels, so they gain nothing from a graph."""
MAX_MIXED_TOKENS = 512
"""Most tokens of a captured pass with prompts, for the same reason."""
MIXED_STEP = 32


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """Device memory of graphs, in bytes."""

    largest: int
    """The graph of the most rows, with the memory in which all graphs compute."""
    max_rows: int
    """Rows of that graph."""
    each_more: int
    """Each further graph, without its outputs."""
    each_row: int
    """Outputs of a row of a further graph, which each graph has for itself."""

    def of(self, sizes: Sequence[GraphSize]) -> int:
        """The bytes of graphs of `sizes` together. The largest counts in proportion to its rows."""
        if not sizes:
            return 0
        nums_rows = [size.num_rows for size in sizes]
        most = max(nums_rows)
        largest = -(-self.largest * most // self.max_rows)
        more = self.each_more * (len(sizes) - 1) + self.each_row * (sum(nums_rows) - most)
        return largest + more


def costs_of(first_bytes: int, first: GraphSize, more_bytes: int, outputs: int) -> GraphCosts:
    """The costs, measured by two graphs: `first`, the largest, took `first_bytes`, and one of half
    as many requests took `more_bytes` more. `outputs`: bytes of a row's outputs, an upper bound of
    `each_row`."""
    num_rows = -(-first.num_requests // 2) * first.run
    each_row = min(outputs, more_bytes // num_rows)
    return GraphCosts(first_bytes, first.num_rows, more_bytes - each_row * num_rows, each_row)


def all_sizes(limits: PassLimits) -> tuple[GraphSize, ...]:
    """The sizes if memory were not limited, decode passes first."""
    return next(_decode_sizes(limits.max_decodes)) + next(_draft_sizes(limits), ())


def largest_size(limits: PassLimits) -> GraphSize:
    """The size of the most rows."""
    return max(all_sizes(limits), key=lambda size: size.num_rows)


def sizes_within(
    limits: PassLimits, costs: GraphCosts, max_bytes: int = MAX_GRAPH_BYTES
) -> tuple[GraphSize, ...]:
    """The sizes that fit into `max_bytes`: decode passes with the finest steps that fit, the
    coarsest being powers of two; then passes that verify drafts, in what is left.

    If even the coarsest do not fit, the largest sizes are left out: such passes take longer to
    compute than to launch.
    """
    decodes = (sizes for sizes in _decode_sizes(limits.max_decodes) if costs.of(sizes) <= max_bytes)
    chosen = next(decodes, ())
    if not chosen:
        return ()
    drafts = (sizes for sizes in _draft_sizes(limits) if costs.of(chosen + sizes) <= max_bytes)
    return chosen + next(drafts, ())


def all_mixed_sizes(limits: PassLimits) -> tuple[int, ...]:
    """Numbers of tokens of passes with prompts if memory were not limited, fewest first. Empty if
    passes may only be so small that another attention kernel is used for them."""
    return next(_mixed_sizes(limits), ())


def mixed_sizes_within(limits: PassLimits, costs: GraphCosts, max_bytes: int) -> tuple[int, ...]:
    """The sizes that fit into `max_bytes`; if not all do, the largest are left out."""
    every = _mixed_sizes(limits)
    return next(
        (sizes for sizes in every if costs.of(list(map(GraphSize, sizes))) <= max_bytes), ()
    )


def graph_sizes(max_requests: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then in steps of 8, of 16 from 64 on and of 32 from 256 on; and
    `max_requests`."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_requests + 1, 32)]
    return (*(size for size in sizes if size < max_requests), max_requests)


def _decode_sizes(max_requests: int) -> Iterator[tuple[GraphSize, ...]]:
    """Sets of sizes, each with fewer than the one before."""
    top = max_requests
    while top:
        for sizes in (graph_sizes(top), _doubling_from((1, 3), top), _doubling_from((1,), top)):
            yield tuple(map(GraphSize, sizes))
        top = (1 << (top - 1).bit_length()) // 2 if top > 1 else 0  # the power of two below


def _draft_sizes(limits: PassLimits) -> Iterator[tuple[GraphSize, ...]]:
    """Sets of sizes, each with fewer than the one before; none if nothing is drafted. Tokens per
    request are limited to `MAX_RUN`, which the attention kernel for few tokens supports."""
    most = min(limits.max_run, MAX_RUN, limits.max_tokens)
    if most < 2:
        return
    all_runs = [1 + num_drafted for num_drafted in _doubling_from((1,), most - 1)]
    max_rows = min(MAX_DRAFTED_ROWS, limits.max_tokens)
    while max_rows >= most:
        for runs in (all_runs, all_runs[-1:]):
            sizes = [
                GraphSize(num_requests, run)
                for run in runs
                for num_requests in _doubling_from((1,), min(limits.max_decodes, max_rows // run))
            ]
            yield tuple(sorted(sizes, key=lambda size: size.num_rows))
        max_rows //= 2


def _mixed_sizes(limits: PassLimits) -> Iterator[tuple[int, ...]]:
    """Sets of sizes, each with fewer than the one before."""
    most = min(MAX_MIXED_TOKENS, limits.max_tokens)
    while most > MAX_RUN:
        yield (*range(MIXED_STEP, most, MIXED_STEP), most)
        most //= 2


def _doubling_from(first: Sequence[int], last: int) -> tuple[int, ...]:
    """The numbers `first` times powers of two below `last`, and `last`, in order."""
    sizes = {start << power for start in first for power in range(last.bit_length())}
    return (*sorted(size for size in sizes if size < last), last)
