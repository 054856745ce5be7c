"""A sanitizer of the interpreter: what a kernel reads and writes lies in the tensors it was given,
and no program touches what another one writes.

A launch has no order among its programs, and the interpreter runs them one after the other: only
the addresses tell that two of them race.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor

Addresses = NDArray[np.uint64]


@contextmanager
def sanitized() -> Iterator[None]:
    """Launches raise a `Race`, or Triton's InterpreterError with an `OutOfBounds` within."""
    from triton.runtime import interpreter

    from baton.kernels.paging import block_copy_gpu

    launch = _Launch(interpreter.interpreter_builder)
    copy_blocks = block_copy_gpu._launch
    real, run = interpreter._interpreter, interpreter.GridExecutor.__call__
    take = interpreter.GridExecutor._init_args_hst

    def load(at: Any, mask: Any, other: Any, dtype: Any) -> Any:
        launch.see(at[mask], np.dtype(dtype).itemsize, is_store=False)
        return real.load(at, mask, other, dtype)

    def store(at: Any, values: Any, mask: Any) -> Any:
        launch.see(at[mask], values.itemsize, is_store=True)
        return real.store(at, values, mask)

    def taken(executor: Any, arguments: Any, options: Any) -> Any:
        found = take(executor, arguments, options)
        launch.begin([*found[0], *found[1].values()])
        return found

    def ran(executor: Any, *arguments: Any, **options: Any) -> None:
        run(executor, *arguments, **options)
        launch.end(executor.fn.__name__)

    def copied(layers: Sequence[Tensor], *arguments: Any, **options: Any) -> None:
        """Whose kernel reads the addresses of layers from memory."""
        launch.known = layers
        copy_blocks(layers, *arguments, **options)
        launch.known = ()

    watching = {name: getattr(real, name) for name in dir(real)} | {"load": load, "store": store}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(interpreter, "_interpreter", SimpleNamespace(**watching))
        patch.setattr(interpreter.GridExecutor, "_init_args_hst", taken)
        patch.setattr(interpreter.GridExecutor, "__call__", ran)
        patch.setattr(block_copy_gpu, "_launch", copied)
        yield


class OutOfBounds(Exception):
    pass


class Race(Exception):
    pass


class _Launch:
    def __init__(self, builder: Any) -> None:
        self._builder = builder
        self.known: Sequence[Tensor] = ()
        """Beside the arguments."""
        self.begin([])

    def begin(self, arguments: Sequence[object]) -> None:
        tensors = [each for each in (*arguments, *self.known) if isinstance(each, Tensor)]
        spans = sorted(map(_span, tensors))
        self._starts = np.array([start for start, _ in spans], dtype=np.uint64)
        # Of spans that overlap, the furthest end of those that begin at or before an address.
        self._ends = np.maximum.accumulate(np.array([end for _, end in spans], dtype=np.uint64))
        self._seen: dict[bool, list[tuple[Addresses, int]]] = {False: [], True: []}

    def see(self, at: Any, item_bytes: int, *, is_store: bool) -> None:
        addresses: Addresses = np.unique(np.asarray(at, dtype=np.uint64))
        if not addresses.size:
            return
        span = np.searchsorted(self._starts, addresses, side="right") - 1
        inside = (span >= 0) & (addresses + np.uint64(item_bytes) <= self._ends[span])
        if not inside.all():
            kind = "write" if is_store else "read"
            raise OutOfBounds(f"{kind} {(~inside).sum()} items outside of all tensors")
        x, y, z = self._builder.grid_idx
        program = (x << 40) | (y << 20) | z
        self._seen[is_store].append((addresses, program))

    def end(self, kernel: str) -> None:
        """Two programs may not write an item, nor one read what another writes."""
        written, by = _flat(self._seen[True])
        order = np.argsort(written, kind="stable")
        written, by = written[order], by[order]
        twice = (written[1:] == written[:-1]) & (by[1:] != by[:-1])
        if twice.any():
            raise Race(f"{kernel}: {twice.sum()} items are written by two programs")
        read, reader = _flat(self._seen[False])
        if written.size and read.size:
            at = np.minimum(np.searchsorted(written, read), written.size - 1)
            raced = (written[at] == read) & (by[at] != reader)
            if raced.any():
                raise Race(f"{kernel}: {raced.sum()} items are read that another program writes")


def _flat(seen: Sequence[tuple[Addresses, int]]) -> tuple[Addresses, NDArray[np.int64]]:
    if not seen:
        return np.empty(0, dtype=np.uint64), np.empty(0, dtype=np.int64)
    programs = [np.full(len(addresses), program) for addresses, program in seen]
    return np.concatenate([addresses for addresses, _ in seen]), np.concatenate(programs)


def _span(tensor: Tensor) -> tuple[int, int]:
    """From its first byte to behind its last."""
    start = tensor.data_ptr()
    if not tensor.numel():
        return start, start
    sides = zip(tensor.shape, tensor.stride(), strict=True)
    items = 1 + sum((length - 1) * stride for length, stride in sides)
    return start, start + items * torch.empty(0, dtype=tensor.dtype).element_size()
