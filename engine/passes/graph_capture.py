"""Capturing a pass as a graph: what CUDA does, and what ranks that sum in it have to agree on.

    prepare     the pass is launched once     a rank that cannot: all raise, for the others' devices
                                              would wait in its sums for ever
    capture     it is launched into a graph   a rank that cannot: nobody has this graph; no device
                                              computes meanwhile, so all go on

`Capture` is CUDA's part, so that the rest is tested without it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import InvalidConfig
from baton.engine.mesh.attempt import RanksApart, tried_by_all
from baton.engine.mesh.ranks import RankGroup, Ranks

Outputs = tuple[Tensor, ...]
"""Hidden states [S, D], logits [S, V], and [S, D] of each tap."""


class Graph(Protocol):
    def replay(self) -> None:
        """Compute again what was captured, from what lies in the same memory now."""


class Capture(Protocol):
    def prepare(self, run: Callable[[], Outputs]) -> None:
        """Launch it, and wait for nobody: what is built or allocated on first use then is there."""

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        """Its memory may be used again once the graph is gone."""

    def await_upload(self) -> None:
        """Wait until the device has read what was last to be uploaded."""

    def uploading(self) -> None:
        """All of a pass is on its way."""


@contextmanager
def launched_by_all(ranks: Ranks) -> Iterator[None]:
    """Around what each rank launches of a pass, without waiting for it. Raises as `tried_by_all`,
    but InvalidConfig if one of several ranks cannot: nobody can go on."""
    try:
        with tried_by_all(ranks):
            yield
    except RanksApart:
        raise
    except RuntimeError as error:
        if not isinstance(ranks, RankGroup):
            raise
        raise InvalidConfig(
            f"a decode pass could not be launched on all ranks ({error}), and the others are amid "
            "it; if memory is what is missing, lower cache.memory_fraction or scheduler.max_running"
        ) from error


class CudaCapture:
    """CUDA's graphs, on one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def prepare(self, run: Callable[[], Outputs]) -> None:
        torch.cuda.synchronize(self._device)  # the batch is uploaded
        with torch.cuda.stream(self._stream):
            run()

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
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
