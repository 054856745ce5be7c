"""Records a handoff from outside, by wrappers around hooks, outbox and transport."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from concurrent.futures import Executor, Future
from contextlib import ExitStack, aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

from torch import Tensor

from baton.engine.batch.batch import Chunk, OnLayer
from baton.engine.engine import Engine
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer
from baton.kv_transfer.handoff.transport import LentPiece, Transport
from baton.kv_transfer.sending.outbox import Outbox
from baton.kv_transfer.sending.pieces import Cut

COMPUTED = "P computes"
HASHED = "P hashes"
SENT = "sent"
WRITTEN = "D writes"
ROWS = (COMPUTED, HASHED, SENT, WRITTEN)


@dataclass(frozen=True, slots=True)
class Bar:
    """One activity on a layer or a piece of it; seconds on one clock."""

    row: str
    layer: int
    start: float
    end: float
    num_bytes: int = 0


@dataclass(slots=True)
class Recorder:
    """Observes replicas; keeps what happens after `clear`."""

    bars: list[Bar] = field(default_factory=list)
    now: Callable[[], float] = time.perf_counter

    def watch_engine(self, engine: Engine) -> None:
        forward = engine.runner.forward

        def noting(chunks: Sequence[Chunk], on_layer: OnLayer) -> Tensor:
            last = self.now()

            def note(layer: int) -> None:
                nonlocal last
                self.bars.append(Bar(COMPUTED, layer, last, self.now()))
                on_layer(layer)
                last = self.now()

            return forward(chunks, note)

        engine.runner.forward = noting  # type: ignore[method-assign, assignment]

    def watch_outbox(self, outbox: Outbox) -> None:
        outbox.hashing = _NotingExecutor(outbox.hashing, self)
        outbox.max_bytes_at_once = 0
        pieces = outbox.pieces

        async def noting(request: OpenTransfer) -> AsyncGenerator[LentPiece, None]:
            async with aclosing(pieces(request)) as lent:
                async for piece in lent:
                    note = self._noting(SENT, piece.plane, piece.num_bytes, piece.give_back)
                    yield replace(piece, give_back=note)

        outbox.pieces = noting  # type: ignore[method-assign]

    def watch_transport(self, transport: Transport) -> None:
        open_ = transport.open

        async def noting(address: str, request: OpenTransfer) -> AsyncGenerator[KvPiece, None]:
            async with aclosing(open_(address, request)) as pieces:
                async for piece in pieces:
                    note = self._noting(WRITTEN, piece.plane, piece.num_bytes, piece.release)
                    yield replace(piece, release=note)

        transport.open = noting  # type: ignore[method-assign]

    @contextmanager
    def noted(self, row: str, layer: int, num_bytes: int) -> Iterator[None]:
        start = self.now()
        yield
        self.bars.append(Bar(row, layer, start, self.now(), num_bytes))

    def _noting(
        self, row: str, layer: int, num_bytes: int, then: Callable[[], None]
    ) -> Callable[[], None]:
        start, is_noted = self.now(), False

        def note() -> None:
            nonlocal is_noted
            if not is_noted:
                is_noted = True
                self.bars.append(Bar(row, layer, start, self.now(), num_bytes))
            then()

        return note


class _NotingExecutor(Executor):
    def __init__(self, inner: Executor, recorder: Recorder) -> None:
        self._inner = inner
        self._recorder = recorder

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        (cuts,) = args

        def noting() -> Any:
            with ExitStack() as noted:
                for cut in cuts:
                    assert isinstance(cut, Cut)
                    noted.enter_context(
                        self._recorder.noted(HASHED, cut.reading.plane, cut.num_bytes)
                    )
                return function(cuts)

        return self._inner.submit(noting)
