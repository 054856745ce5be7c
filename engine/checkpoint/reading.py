"""Assembles weights from the tensors of a checkpoint, one after the other.

    entries  -->  loaded, cast  -->  converted to our layout  -->  a rank's part of it  -->  stacked

The pages of the file are released as soon as a weight has been made from them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor

from baton.engine.checkpoint.files.tensor_files import TensorEntry
from baton.engine.layers.attention import HeadShape
from baton.engine.sharding.cutting import Cutter
from baton.engine.sharding.placement import WeightPlacement
from baton.kernels.cpu import huge_pages

Progress = Callable[[int, int], None]
"""Called with (bytes read, bytes in all)."""


class CheckpointReader:
    """Reads the entries of a checkpoint named by `placements`, and calls `progress` after each.
    `cutter` cuts out a rank's part; None on a single rank."""

    def __init__(
        self,
        heads: HeadShape,
        placements: Sequence[WeightPlacement],
        entries: Mapping[str, TensorEntry],
        progress: Progress | None,
        cutter: Cutter | None,
    ) -> None:
        self._heads = heads
        self._cutter = cutter
        self._entries = entries
        self._progress = progress
        self._num_bytes = 0
        self._memory = torch.empty(0, dtype=torch.uint8)
        self._total_bytes = sum(self._bytes_of(placement) for placement in placements)

    @contextmanager
    def assembled(self, sources: Sequence[WeightPlacement], dtype: torch.dtype) -> Iterator[Tensor]:
        """The weight made of `sources`. It must not be written, and is valid within the context: it
        may be a view of the file, or memory that the next weight reuses."""
        parts = [self._load(source, dtype) for source in sources]
        if len(parts) == 1 and parts[0].is_contiguous():
            yield parts[0]
        else:
            rows = sum(len(part) for part in parts)
            yield torch.cat(parts, out=self._room((rows, *parts[0].shape[1:]), dtype))
        for source in sources:
            self._entries[source.source].release()

    def skip(self, sources: Sequence[WeightPlacement]) -> None:
        """Count `sources` as read and release their pages: they were read in another way."""
        for source in sources:
            self._count(source)
            self._entries[source.source].release()

    def _room(self, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
        """Memory for a weight, reused for all weights: touching new pages costs more than
        copying."""
        num_bytes = torch.Size(shape).numel() * dtype.itemsize
        if self._memory.nbytes < num_bytes:
            self._memory = huge_pages.empty((num_bytes,), torch.uint8)
        return self._memory[:num_bytes].view(dtype).view(shape)

    def _load(self, source: WeightPlacement, dtype: torch.dtype) -> Tensor:
        entry = self._entries[source.source]
        if source.is_of_stack and source.expert is not None:
            stored = entry.load_matrix(source.expert, dtype)
        else:
            stored = entry.load(dtype)
        loaded = source.arrangement.ours(stored, self._heads)
        self._count(source)
        return loaded if self._cutter is None else self._cutter.cut(source, loaded)

    def _count(self, source: WeightPlacement) -> None:
        self._num_bytes += self._bytes_of(source)
        if self._progress is not None:
            self._progress(self._num_bytes, self._total_bytes)

    def _bytes_of(self, source: WeightPlacement) -> int:
        """The bytes of a source in its file; for a matrix of a stack its share of the entry."""
        num_bytes = self._entries[source.source].num_bytes
        if source.is_of_stack and source.expert is not None:
            num_experts, expert = source.shape[0], source.expert
            num_bytes = num_bytes * (expert + 1) // num_experts - num_bytes * expert // num_experts
        return num_bytes
