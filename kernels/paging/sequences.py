"""The division of a pass into requests, and the blocks of each request's KV.

    tokens of the pass   | request 0      | request 1 | request 2        |      T, concatenated
                         ^ query_starts[0] ^ [1]       ^ [2]              ^ [3] = T
    request r            tokens 0 .. context_lens[r] - 1 are in the blocks of block_tables[r], in
                         order; the last query_starts[r + 1] - query_starts[r] of them are new

T new tokens of R requests, M blocks of the longest of them.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor

from baton.kernels.gpu.upload import uploaded
from baton.kernels.paging.attention_plan import ArenaShape, AttentionPlan, plan_attention
from baton.kernels.paging.window import Window, within

MAX_RUN = 16
"""Most new tokens of a request for which a GPU splits the context as in decoding, in passes where
no request has more; with more, tiles of queries are faster."""


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Sequences:
    """Tensors may be longer than R and T, as they are views of preallocated memory."""

    num_requests: int
    positions: Tensor  # [T] int64
    query_starts: Tensor  # [R + 1] int64
    context_lens: Tensor  # [R] int64
    block_tables: Tensor  # [R, M] padded with any block; int64 on a CPU, may be int32 elsewhere
    block_size: int
    max_query_len: int
    """Upper bound of the new tokens of a request: 1 if all decode."""
    max_context_len: int
    """Upper bound of the tokens of a request."""
    open_slots: Tensor | None = None  # [R] int64
    """The slot for open blocks of each request, for int4 caches (kernels/paging/int4_arena.py)."""
    is_captured: bool = False
    """Whether a graph of passes with prompts is being captured. It will be replayed for requests of
    other lengths, so nothing may depend on the present ones."""
    on_written: Callable[[Tensor], None] | None = None
    """Called with the blocks of a layer after the new tokens are written and before attention:
    other ranks may have written some of the tokens that these attend to."""
    _plans: dict[tuple[Window, ArenaShape], AttentionPlan] = field(
        default_factory=dict, init=False, repr=False
    )
    _lengths: list[tuple[int, int]] = field(default_factory=list, init=False, repr=False)
    _runs: list[Sequences] = field(default_factory=list, init=False, repr=False)

    def knowing(self, lengths: Iterable[tuple[int, int]]) -> Sequences:
        """The same with `lengths()` known to the host, so that nothing waits for the device."""
        self._lengths[:] = lengths
        return self

    def lengths(self) -> list[tuple[int, int]]:
        """(query_len, context_len) of each request. Unless the host knows them, the first call
        waits for the device.

        Raises RuntimeError while a graph is captured, which would contain these lengths for ever.
        """
        is_capturing = self.query_starts.is_cuda and torch.cuda.is_current_stream_capturing()
        if self.is_captured or is_capturing:
            raise RuntimeError("what asks for the lengths of requests cannot be captured")
        if not self._lengths:
            starts = self.query_starts[: self.num_requests + 1]
            query_lens = (starts[1:] - starts[:-1]).tolist()
            context_lens = self.context_lens[: self.num_requests].tolist()
            self._lengths.extend(zip(query_lens, context_lens, strict=True))
        return self._lengths

    def wait_for_others(self, blocks: Tensor) -> None:
        """Called after writing to `blocks`, those of a layer."""
        if self.on_written is not None:
            self.on_written(blocks)

    def last_token(self) -> Sequences:
        """The same, with only the last token new. There must be a single request."""
        if self.num_requests != 1:
            raise ValueError(f"the last token of {self.num_requests} requests")
        last = len(self.positions) - 1
        return replace(
            self,
            positions=self.positions[last:],
            query_starts=torch.arange(2, device=self.query_starts.device),
            max_query_len=1,
        ).knowing((1, context_len) for _, context_len in self._lengths)

    def part(self, first: int, stop: int) -> Sequences:
        """The sequences of consecutive requests, and their tokens."""
        lengths = self.lengths()
        begin = sum(query_len for query_len, _ in lengths[:first])
        num_tokens = sum(query_len for query_len, _ in lengths[first:stop])
        return replace(
            self,
            num_requests=stop - first,
            positions=self.positions[begin : begin + num_tokens],
            query_starts=self.query_starts[first : stop + 1] - begin,
            context_lens=self.context_lens[first:stop],
            block_tables=self.block_tables[first:stop],
            max_query_len=max(query_len for query_len, _ in lengths[first:stop]),
            max_context_len=max(context_len for _, context_len in lengths[first:stop]),
            open_slots=None if self.open_slots is None else self.open_slots[first:stop],
        ).knowing(lengths[first:stop])

    def in_runs(self) -> Sequences:
        """The same tokens, as requests of at most MAX_RUN new ones; computed on first use."""
        if self.max_query_len <= MAX_RUN:
            return self
        if not self._runs:
            self._runs.append(self._cut())
        return self._runs[0]

    def some(self, first: int, stop: int) -> Sequences:
        """Consecutive requests, whose tokens keep their numbers in the pass."""
        return replace(
            self,
            num_requests=stop - first,
            query_starts=self.query_starts[first : stop + 1],
            context_lens=self.context_lens[first:stop],
            block_tables=self.block_tables[first:stop],
        )

    def _cut(self) -> Sequences:
        owners, starts, context_lens = array("q"), array("q", (0,)), array("q")
        for owner, (query_len, context_len) in enumerate(self.lengths()):
            for done in range(0, query_len, MAX_RUN):
                num_tokens = min(MAX_RUN, query_len - done)
                owners.append(owner)
                starts.append(starts[-1] + num_tokens)
                context_lens.append(context_len - query_len + done + num_tokens)
        device = self.query_starts.device
        owners_there, query_starts, lens_there = (
            uploaded(torch.frombuffer(words, dtype=torch.int64), device)
            for words in (owners, starts, context_lens)
        )
        return replace(
            self,
            num_requests=len(owners),
            query_starts=query_starts,
            context_lens=lens_there,
            block_tables=self.block_tables.index_select(0, owners_there),
            max_query_len=MAX_RUN,
            open_slots=None,
        )

    def with_own_blocks(self, num_blocks: int) -> Sequences:
        """The same request over an arena of its own. There must be a single request."""
        if self.num_requests != 1:
            raise ValueError(f"{self.num_requests} requests over the blocks of one")
        table = torch.arange(num_blocks, device=self.block_tables.device)
        return replace(self, block_tables=table.unsqueeze(0)).knowing(self._lengths)

    def plan(self, window: Window, shape: ArenaShape) -> AttentionPlan:
        """The plan of torch's attention for layers with this window; computed on first use."""
        query_lens, context_lens = zip(*self.lengths(), strict=True)
        window = within(window, max(context_lens))
        plan = self._plans.get((window, shape))
        if plan is None:
            tables = self.block_tables[: self.num_requests]
            plan = plan_attention(tables, query_lens, context_lens, shape, window)
            self._plans[window, shape] = plan
        return plan
