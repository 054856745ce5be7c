"""Captures a pass as a CUDA graph, on all ranks whose all-reduces it contains.

    prepare     the pass is launched once     if it fails on one rank, all raise: the other devices
                                              would wait for its all-reduces for ever
    capture     it is launched into a graph   if it fails on one rank, no rank has this graph; no
                                              device computes meanwhile, so all can go on

`Capture` wraps the CUDA calls, so that the rest can be tested without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
from torch import Tensor

from baton.core.errors import InvalidConfig
from baton.engine.mesh.attempt import RanksApart, collective_attempt
from baton.engine.mesh.ranks import RankGroup, Ranks

Outputs = tuple[Tensor, ...]
"""Hidden states [S, D], logits [S, V], and [S, D] of each tap."""


class Graph(Protocol):
    def replay(self) -> None:
        """Run the captured pass again, on the present content of its input tensors."""


class Capture(Protocol):
    def prepare(self, run: Callable[[], Outputs]) -> None:
        """Launch `run` once, without waiting for the device, so that everything that is compiled or
        allocated on first use is ready before the capture."""

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        """Capture `run`. The outputs are in memory of the graph, which is reused when it is
        gone."""

    def await_upload(self) -> None:
        """Wait until the device has read the last upload, so that host buffers may be written."""

    def uploading(self) -> None:
        """Note that all uploads of a pass have been enqueued."""


@contextmanager
def collective_launch(ranks: Ranks) -> Iterator[None]:
    """A context in which each rank launches its part of a pass without waiting for the device.
    Raises what `collective_attempt` raises, except that with several ranks a failure of one becomes
    InvalidConfig, because none can go on."""
    try:
        with collective_attempt(ranks):
            yield
    except RanksApart:
        raise
    except RuntimeError as error:
        if not isinstance(ranks, RankGroup):
            raise
        raise InvalidConfig(
            f"a decode pass could not be launched on all ranks ({error}), while the others are "
            "computing it; if memory is short, lower cache.memory_fraction or scheduler.max_running"
        ) from error


class CudaCapture:
    """A `Capture` on one CUDA device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._pool = torch.cuda.graph_pool_handle()
        self._read = torch.cuda.Event()  # type: ignore[no-untyped-call]

    def prepare(self, run: Callable[[], Outputs]) -> None:
        torch.cuda.synchronize(self._device)  # until the batch is uploaded
        with torch.cuda.stream(self._stream):
            run()

    def __call__(self, run: Callable[[], Outputs]) -> tuple[Graph, Outputs]:
        torch.cuda.synchronize(self._device)
        graph = torch.cuda.CUDAGraph()
        # NCCL's thread queries its events meanwhile, which would fail a capture in global mode.
        mode = "thread_local"
        with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode=mode):
            outputs = run()
        return graph, outputs

    def await_upload(self) -> None:
        self._read.synchronize()

    def uploading(self) -> None:
        self._read.record(torch.cuda.current_stream(self._device))


def free_bytes(device: torch.device) -> int:
    """The free bytes of a GPU, with nothing cached by torch's allocator."""
    torch.cuda.synchronize(device)
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(device)
    return free
