"""That the next piece is copied on a device while D has yet to take the one before."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from threading import Event
from typing import Any

import pytest
import torch
from tests.kv_transfer.replicas import LAYOUT
from tests.kv_transfer.transport.collective.pairs import a_piece

from baton.engine.memory.kv_cache import KvCache
from baton.kv_transfer.handoff.transport import LentPiece
from baton.kv_transfer.transport.collective.staging import DeviceStaging


def piece_of(cache: KvCache) -> LentPiece:
    size = LAYOUT.layer_block_bytes
    return replace(a_piece(bytes(size), bytes(size)), plane=1, blocks=(1, 0))


@dataclass(eq=False)
class _Stream:
    """Does at once what is launched on it, and knows whether a device would get to it."""

    device: torch.device
    waits_for_peer: bool = False

    def synchronize(self) -> None: ...


@dataclass(eq=False)
class _Streams:
    """Stands in for `torch.cuda`."""

    current: list[_Stream] = field(default_factory=list)
    recorded_on: list[_Stream] = field(default_factory=list)
    Stream = _Stream

    @contextmanager
    def stream(self, stream: _Stream) -> Iterator[None]:
        self.current.append(stream)
        yield
        self.current.pop()

    def Event(self) -> _Streams:
        return self

    def record(self, stream: _Stream) -> None:
        self.recorded_on.append(stream)

    def synchronize(self) -> None: ...

    def wait(self) -> None:
        """Of the work that sends to a peer which takes nothing yet."""
        self.current[-1].waits_for_peer = True


def test_no_copy_comes_behind_the_wait_for_what_was_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    cache, streams = KvCache(LAYOUT, 2), _Streams()
    for name in ("Stream", "stream", "Event"):
        monkeypatch.setattr(torch.cuda, name, getattr(streams, name))
    work: Any = streams
    staging = DeviceStaging(cache.arena).of_pair()

    staging.outgoing(piece_of(cache))
    staging.sent(work)
    staging.outgoing(piece_of(cache))

    first, second = streams.recorded_on
    assert first.device == second.device
    assert not first.waits_for_peer and not second.waits_for_peer


@pytest.mark.gpu
def test_a_piece_is_copied_on_a_gpu_while_the_one_before_waits_for_its_receiver() -> None:
    cuda: Any = torch.cuda
    cache, receiver, taken = KvCache(LAYOUT, 2, device="cuda"), cuda.Stream(), cuda.Event()
    staging, is_waiting = DeviceStaging(cache.arena), Event()
    staging.outgoing(piece_of(cache))  # its kernels are loaded, which waits for the device
    cuda.synchronize()
    with cuda.stream(receiver):
        cuda._sleep(4_000_000_000)  # cycles: seconds
        taken.record(receiver)

    class Sending:
        def wait(self) -> None:
            cuda.current_stream().wait_event(taken)
            is_waiting.set()

    work: Any = Sending()
    with ThreadPoolExecutor(1) as thread:
        sent = thread.submit(staging.sent, work)
        assert is_waiting.wait(60)

        _, copied = staging.outgoing(piece_of(cache))
        assert copied is not None
        copied()

        assert not taken.query()
        sent.result(60)
