"""How many graphs there are, and of which passes: as many as their memory allows.

    decode passes        1, 2, 4, 8 ... requests of one token
    drafts to verify     1, 2, 4, 8 ... requests of 2, 3, 5, 9 ... tokens, up to MAX_DRAFTED_ROWS
    with prompts         32, 64, 96 ... tokens of any requests, up to MAX_MIXED_TOKENS

Passes of few requests gain most of a graph: theirs are the last to go. Those with drafts go before
any that decodes, and those with prompts before these.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from baton.engine.batch.static_batch import GraphSize, PassLimits
from baton.kernels.paging.sequences import MAX_RUN

MAX_GRAPH_BYTES = 2 << 30
"""Bytes of the device, for all graphs."""
MAX_DRAFTED_ROWS = 256
"""Tokens of a captured pass that verifies drafts: of more, products take longer than it takes to
launch them one kernel at a time."""
MAX_MIXED_TOKENS = 512
"""Tokens of a captured pass with prompts: likewise."""
MIXED_STEP = 32


@dataclass(frozen=True, slots=True)
class GraphCosts:
    """Bytes of a device."""

    largest: int
    """The graph of the most rows, and the memory that all others compute in."""
    max_rows: int
    """Rows of that graph."""
    each_more: int
    each_row: int
    """The outputs of a row, which no other graph has its own in."""

    def of(self, sizes: Sequence[GraphSize]) -> int:
        """What `sizes` take together: the largest in proportion to its rows."""
        if not sizes:
            return 0
        nums_rows = [size.num_rows for size in sizes]
        most = max(nums_rows)
        largest = -(-self.largest * most // self.max_rows)
        more = self.each_more * (len(sizes) - 1) + self.each_row * (sum(nums_rows) - most)
        return largest + more


def costs_of(first_bytes: int, first: GraphSize, more_bytes: int, outputs: int) -> GraphCosts:
    """The costs if the graph `first`, the largest, took so many bytes, and one of half as many
    requests so many more, of which `outputs` each row's are at most."""
    num_rows = -(-first.num_requests // 2) * first.run
    each_row = min(outputs, more_bytes // num_rows)
    return GraphCosts(first_bytes, first.num_rows, more_bytes - each_row * num_rows, each_row)


def all_sizes(limits: PassLimits) -> tuple[GraphSize, ...]:
    """The sizes where memory limits nothing; fewest rows first."""
    return next(_decode_sizes(limits.max_decodes)) + next(_draft_sizes(limits), ())


def largest_size(limits: PassLimits) -> GraphSize:
    """The size of the most rows."""
    return max(all_sizes(limits), key=lambda size: size.num_rows)


def sizes_within(
    limits: PassLimits, costs: GraphCosts, max_bytes: int = MAX_GRAPH_BYTES
) -> tuple[GraphSize, ...]:
    """The finest steps that fit, those in which a pass is at most doubled being the coarsest; then
    those of drafts, in what is left.

    If not even they do, the largest sizes go: such passes are computed for longer than it takes to
    launch them one kernel at a time.
    """
    decodes = (sizes for sizes in _decode_sizes(limits.max_decodes) if costs.of(sizes) <= max_bytes)
    chosen = next(decodes, ())
    if not chosen:
        return ()
    drafts = (sizes for sizes in _draft_sizes(limits) if costs.of(chosen + sizes) <= max_bytes)
    return chosen + next(drafts, ())


def all_mixed_sizes(limits: PassLimits) -> tuple[int, ...]:
    """Tokens of passes with prompts, where memory limits nothing; fewest first. There are none
    where a pass has so few that its attention would be another."""
    return next(_mixed_sizes(limits), ())


def mixed_sizes_within(limits: PassLimits, costs: GraphCosts, max_bytes: int) -> tuple[int, ...]:
    """The sizes that fit. If not all do, the largest go."""
    every = _mixed_sizes(limits)
    return next(
        (sizes for sizes in every if costs.of(list(map(GraphSize, sizes))) <= max_bytes), ()
    )


def graph_sizes(max_requests: int) -> tuple[int, ...]:
    """1, 2, 4, 8, then in steps of 8, of 16 from 64 on and of 32 from 256 on; the last of all."""
    sizes = [1, 2, 4, *range(8, 64, 8), *range(64, 256, 16), *range(256, max_requests + 1, 32)]
    return (*(size for size in sizes if size < max_requests), max_requests)


def _decode_sizes(max_requests: int) -> Iterator[tuple[GraphSize, ...]]:
    """Fewer and fewer."""
    top = max_requests
    while top:
        for sizes in (graph_sizes(top), _doubling_from((1, 3), top), _doubling_from((1,), top)):
            yield tuple(map(GraphSize, sizes))
        top = (1 << (top - 1).bit_length()) // 2 if top > 1 else 0  # the power of two below


def _draft_sizes(limits: PassLimits) -> Iterator[tuple[GraphSize, ...]]:
    """Fewer and fewer; none if nothing is drafted. What the attention of few tokens takes is in
    graphs, and no more."""
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
    """Fewer and fewer."""
    most = min(MAX_MIXED_TOKENS, limits.max_tokens)
    while most > MAX_RUN:
        yield (*range(MIXED_STEP, most, MIXED_STEP), most)
        most //= 2


def _doubling_from(first: Sequence[int], last: int) -> tuple[int, ...]:
    """These, twice, four times as many and so on, below the last; and that."""
    sizes = {start << power for start in first for power in range(last.bit_length())}
    return (*sorted(size for size in sizes if size < last), last)
