"""CUDA's streams and events as far as they order work: who has to come after whom.

    cuda.launch("pass")     on this thread's current stream
    cuda.predecessors()     all that this stream's next work comes after
    cuda.awaited()          all that is over, as far as this host knows

What is launched is done at once, on CPU tensors; whether it might not have been is asked of these
sets.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from baton.engine.memory import kv_staging


class OrderedStream:
    def __init__(self, cuda: OrderedCuda) -> None:
        self._cuda = cuda
        self.work: set[str] = set()

    def wait_event(self, event: OrderedEvent) -> None:
        self.work |= event.work

    def synchronize(self) -> None:
        self._cuda.over |= self.work


class OrderedEvent:
    def __init__(self, cuda: OrderedCuda) -> None:
        self._cuda = cuda
        self.work: frozenset[str] = frozenset()

    def record(self, stream: OrderedStream) -> None:
        self.work = frozenset(stream.work)

    def synchronize(self) -> None:
        self._cuda.over |= self.work


class OrderedCuda:
    def __init__(self) -> None:
        self.over: set[str] = set()
        self.default = OrderedStream(self)
        self._of_thread = threading.local()

    def Stream(self, device: object) -> OrderedStream:
        return OrderedStream(self)

    def Event(self) -> OrderedEvent:
        return OrderedEvent(self)

    def current_stream(self, device: object = None) -> OrderedStream:
        stream: OrderedStream = getattr(self._of_thread, "stream", self.default)
        return stream

    @contextmanager
    def stream(self, stream: OrderedStream) -> Iterator[None]:
        before = self.current_stream()
        self._of_thread.stream = stream
        try:
            yield
        finally:
            self._of_thread.stream = before

    def device(self, device: object) -> AbstractContextManager[None]:
        return nullcontext()

    def launch(self, name: str) -> None:
        self.current_stream().work.add(name)

    def predecessors(self) -> set[str]:
        return set(self.current_stream().work)

    def awaited(self) -> set[str]:
        return set(self.over)


def pretend(monkeypatch: pytest.MonkeyPatch) -> OrderedCuda:
    """Let KV be staged on such streams, with CPU tensors."""
    cuda = OrderedCuda()
    empty: Callable[..., Any] = torch.empty

    def unpinned(*shape: Any, pin_memory: bool = False, **options: Any) -> torch.Tensor:
        made: torch.Tensor = empty(*shape, **options)
        return made

    of_torch = SimpleNamespace(cuda=cuda, empty=unpinned, tensor=torch.tensor, uint8=torch.uint8)
    monkeypatch.setattr(kv_staging, "torch", of_torch)
    return cuda
