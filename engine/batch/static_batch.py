"""The input tensors of a pass at fixed addresses; each pass overwrites the one before.

    tokens [T'], positions [T'], output_rows [T']      query_starts [R' + 1], context_lens [R']
    block_tables [R', M'], open_slots [R']             adapters of tokens and of outputs [T']

A recorded tape (on a CPU) or CUDA graph then runs any pass that fits: at most T' tokens of R'
requests, each of at most M' blocks. The `Batch` of a pass is views of the tensors' beginnings.

For a `Decoding` only what changes from turn to turn is written: rows stay in place, positions and
lengths advance by one, and new blocks are added to tables. Tokens that were sampled on the device
are copied there.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import Tensor

from baton.core.wording import count_of
from baton.engine.batch.batch import Batch, Chunk
from baton.engine.batch.block_tables import block_tables
from baton.engine.batch.decoding import Decoding
from baton.engine.batch.row_adapters import RowAdapters, adapter_numbers
from baton.kernels.paging.sequences import Sequences


class GraphSize(NamedTuple):
    """The size of a pass that is captured as a CUDA graph."""

    num_requests: int
    run: int = 1
    """Tokens per request: 1 in plain decoding, more where drafts are verified."""

    @property
    def num_rows(self) -> int:
        return self.num_requests * self.run

    def __str__(self) -> str:
        return f"{count_of(self.num_requests, 'request')} of {count_of(self.run, 'token')}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PassLimits:
    """The largest pass that buffers, tapes and graphs are made for. Larger passes are computed,
    too, but not as fast."""

    max_tokens: int = 2048
    max_requests: int = 64
    max_blocks: int = 2048
    """Blocks per request."""
    max_drafted: int = 0
    """Draft tokens per pass, each of which needs a row of logits, too."""
    max_run: int = 1
    """Tokens of a request in a pass that verifies drafts: its last known token and its drafts."""
    micro_batch_tokens: int = 64
    """Least tokens of a micro-batch, with pipeline parallelism."""
    graph_sizes: tuple[GraphSize, ...] | None = None
    """The decode passes to capture on a GPU; None for all sizes that are useful."""
    mixed_sizes: tuple[int, ...] | None = None
    """The passes with prompts to capture on a GPU, by number of tokens; None for all that are
    useful."""

    @property
    def max_logits(self) -> int:
        """Most rows of logits of a pass."""
        return min(self.max_requests + self.max_drafted, max(self.max_tokens, self.max_requests))

    @property
    def max_decodes(self) -> int:
        """Most requests of a pass in which each has one token."""
        return min(self.max_requests, self.max_tokens)


DEFAULT_LIMITS = PassLimits()
MANY_WORDS = 32
"""Above this number of words torch is faster than a loop in Python."""
MAX_KEPT_VIEWS = 256
"""Views of at most this many words are kept for reuse."""


class _Words:
    """An int64 tensor on a device with a fixed address, written through pinned host memory; on a
    CPU written directly."""

    def __init__(self, count: int, device: torch.device) -> None:
        self.tensor = torch.zeros(count, dtype=torch.int64, device=device)
        self._host = self.tensor
        if device.type != "cpu":
            self._host = torch.zeros(count, dtype=torch.int64, pin_memory=device.type == "cuda")
        memory = (ctypes.c_int64 * count).from_address(self._host.data_ptr())
        self.words = memoryview(memory).cast("B").cast("q")
        self._views: dict[int, Tensor] = {}
        """Views of the first words, by their number. Making a view takes longer than writing a few
        words."""

    def first(self, count: int) -> Tensor:
        """A view of the first `count` words, on the device."""
        view = self._views.get(count)
        if view is None:
            view = self.tensor[:count]
            if count <= MAX_KEPT_VIEWS:
                self._views[count] = view
        return view

    def write(self, start: int, values: array[int]) -> None:
        self.words[start : start + len(values)] = memoryview(values)

    def add_one(self, count: int) -> None:
        """Add one to each of the first `count` words on the host."""
        if count > MANY_WORDS:
            self._host[:count].add_(1)
            return
        words = self.words
        for at in range(count):
            words[at] += 1

    def upload(self, count: int) -> None:
        """Copy the first `count` words to the device, asynchronously."""
        if self._host is not self.tensor:
            self.tensor[:count].copy_(self._host[:count], non_blocking=True)


class _Adapters:
    """The adapters of a pass's rows at fixed addresses."""

    def __init__(self, max_tokens: int, device: torch.device) -> None:
        self._tokens = _Words(max_tokens, device)
        self._outputs = _Words(max_tokens, device)

    def written(self, chunks: Sequence[Chunk], output_rows: Sequence[int]) -> RowAdapters:
        numbers = [chunk.adapter for chunk in chunks]
        lengths = [len(chunk.tokens) for chunk in chunks]
        tokens, outputs = adapter_numbers(numbers, lengths, output_rows)
        return RowAdapters(_written(self._tokens, tokens), _written(self._outputs, outputs))


@dataclass(frozen=True, slots=True, eq=False)
class _Turn:
    """A turn of a decoding that is in the batch."""

    decoding: Decoding
    number: int
    batch: Batch

    def is_before(self, chunks: Sequence[Chunk]) -> bool:
        """Whether `chunks` are the next turn of the same decoding."""
        return chunks is self.decoding and self.decoding.turn == self.number + 1


class StaticBatch:
    """Input tensors of one pass at a time. Not thread-safe: a `Batch` is valid until the next."""

    def __init__(
        self,
        limits: PassLimits,
        block_size: int,
        device: torch.device | str = "cpu",
        *,
        has_adapters: bool = False,
    ) -> None:
        """`has_adapters`: passes tell the adapter of each row, also where no row has one."""
        self.limits = limits
        self._block_size = block_size
        place = torch.device(device)
        self._is_on_host = place.type == "cpu"
        self._tokens = _Words(limits.max_tokens, place)
        self._positions = _Words(limits.max_tokens, place)
        self._output_rows = _Words(limits.max_tokens, place)
        self._query_starts = _Words(limits.max_requests + 1, place)
        self._context_lens = _Words(limits.max_requests, place)
        self._open_slots = _Words(limits.max_requests, place)
        self._adapters = _Adapters(limits.max_tokens, place) if has_adapters else None
        self._tables = block_tables(limits.max_requests, limits.max_blocks, place)
        self._filled: _Turn | None = None
        """The turn that was filled in last, if it was one of a decoding."""

    def fits(self, chunks: Sequence[Chunk]) -> bool:
        """Whether a pass of `chunks` is within the limits."""
        limits = self.limits
        if self._filled is not None and self._filled.is_before(chunks):
            decoding = self._filled.decoding
            return all(self._place(decoding, row) < limits.max_blocks for row in decoding.grown)
        if len(chunks) > limits.max_requests:
            return False
        num_tokens, most = 0, limits.max_blocks * self._block_size
        for tokens, start, *_ in chunks:
            num_tokens += len(tokens)
            if start + len(tokens) > most:
                return False
        return num_tokens <= limits.max_tokens

    def fill(
        self,
        chunks: Sequence[Chunk],
        output_rows: Sequence[int] | None = None,
        num_requests: int = 0,
    ) -> Batch:
        """Write the pass of `chunks`, end to end, followed by requests without tokens up to
        `num_requests`.

        `output_rows`: the rows whose outputs are wanted; if None, the last `num_outputs` tokens of
        each chunk. Raises ValueError if a chunk is empty or longer than its blocks, or if the pass
        does not fit.
        """
        filled, self._filled = self._filled, None
        if filled is not None and filled.is_before(chunks):
            batch = self._fill_next(filled)
        else:
            batch = self._fill_anew(chunks, output_rows, num_requests)
        if isinstance(chunks, Decoding):
            self._filled = _Turn(chunks, chunks.turn, batch)
        return batch

    def _fill_next(self, filled: _Turn) -> Batch:
        decoding, batch = filled.decoding, filled.batch
        count, grown = len(decoding), decoding.grown
        if decoding.drawn is not None:
            self._tokens.tensor[:count].copy_(decoding.drawn)
        else:
            self._tokens.write(0, array("q", decoding.tokens))
            self._tokens.upload(count)
        for words in (self._positions, self._context_lens):
            words.add_one(count)
            words.upload(count)
        sequences = batch.sequences
        if not grown and self._is_on_host:
            return batch  # its max_context_len counts whole blocks, so it still holds
        tables, width = sequences.block_tables, sequences.block_tables.shape[1]
        for row in grown:
            place = self._place(decoding, row)
            self._tables.write(row, decoding.tables[row][place : place + 1], place)
            width = max(width, place + 1)
        if grown:
            tables = self._tables.view(count, width)
        max_context_len = sequences.max_context_len + 1
        if self._is_on_host:
            max_context_len = max(sequences.max_context_len, width * self._block_size)
        return replace(
            batch,
            sequences=replace(sequences, block_tables=tables, max_context_len=max_context_len),
        )

    def _fill_anew(
        self, chunks: Sequence[Chunk], wanted: Sequence[int] | None, num_requests: int
    ) -> Batch:
        if not self.fits(chunks):
            raise ValueError(f"a pass of {len(chunks)} requests is larger than {self.limits}")
        tokens, positions, output_rows = array("q"), array("q"), array("q")
        starts, context_lens, width = array("q", (0,)), array("q"), 1
        max_query_len, is_lasting = 0, self._is_on_host and isinstance(chunks, Decoding)
        for request, (new, start, blocks, num_outputs, *_) in enumerate(chunks):
            query_len = len(new)
            context_len = start + query_len
            num_blocks = -(-context_len // self._block_size)
            if not query_len or len(blocks) < num_blocks:
                raise ValueError(
                    f"a chunk of {query_len} tokens after {start} does not fit into "
                    f"{len(blocks)} blocks of {self._block_size}"
                )
            tokens.extend(new)
            stop = starts[-1] + query_len
            starts.append(stop)
            context_lens.append(context_len)
            positions.extend(range(start, context_len))
            output_rows.extend(range(stop - num_outputs, stop))
            self._tables.write(request, blocks[:num_blocks])
            width = max(width, num_blocks)
            max_query_len = max(max_query_len, query_len)
        open_slots = array("q", [chunk.open_slot for chunk in chunks])
        without_tokens = max(0, num_requests - len(chunks))
        starts.extend([starts[-1]] * without_tokens)
        for words in (context_lens, open_slots):
            words.extend([0] * without_tokens)
        if wanted is not None:
            output_rows = array("q", wanted)
        adapters = None
        if self._adapters is not None:
            adapters = self._adapters.written(chunks, output_rows)
        return Batch(
            tokens=_written(self._tokens, tokens),
            output_rows=_written(self._output_rows, output_rows),
            sequences=Sequences(
                num_requests=len(context_lens),
                positions=_written(self._positions, positions),
                query_starts=_written(self._query_starts, starts),
                context_lens=_written(self._context_lens, context_lens),
                block_tables=self._tables.view(len(context_lens), width),
                block_size=self._block_size,
                max_query_len=max_query_len,
                max_context_len=self._block_size * width if is_lasting else max(context_lens),
                open_slots=_written(self._open_slots, open_slots),
            ),
            adapters=adapters,
        )

    def _place(self, decoding: Decoding, row: int) -> int:
        """Index in the row's block table of the block that its next token belongs to."""
        return decoding.position(row) // self._block_size


def _written(words: _Words, values: array[int]) -> Tensor:
    words.write(0, values)
    words.upload(len(values))
    return words.first(len(values))
