"""The spans of KV that is brought in from other replicas, however that ends."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any, cast

import pytest

from baton.core.ids import Epoch, ReplicaId, RequestId
from baton.core.messages import GenerateRequest
from baton.core.replicas import ReplicaAddress
from baton.core.tracing import Span
from baton.decode_service.generating import Generating
from baton.decode_service.pulling import Pulling

SOURCE = ReplicaAddress(replica_id=ReplicaId("decode-1"), epoch=Epoch("e1"), address="127.0.0.1:1")


class Endings:
    """A span that tells how its children ended."""

    context, is_recording = "", False

    def __init__(self) -> None:
        self.by_name: dict[str, str] = {}
        self.name = ""

    def child(self, name: str, *_: Any, **__: Any) -> Span:
        span = Endings()
        span.by_name, span.name = self.by_name, name
        return cast("Span", span)

    def end(self, error: str = "") -> None:
        self.by_name[self.name] = error


class StuckExchange:
    """A peer that neither sends nor says so."""

    peers = SimpleNamespace(source=lambda *_, **__: None)

    def __init__(self) -> None:
        self.prefixes = self

    @asynccontextmanager
    async def bring_in(self, *_: Any, **__: Any) -> AsyncIterator[None]:
        await asyncio.sleep(60)
        yield

    prefix_of = bring_in


@pytest.mark.parametrize("name", ["pull", "take over"])
async def test_a_pull_that_is_cancelled_leaves_its_span(name: str) -> None:
    spans = Endings()
    message = GenerateRequest(
        request_id=RequestId("r"), attempt=2, prompt=(5, 6, 7, 8), source=SOURCE
    )
    asked = Generating(message, cast("Any", SimpleNamespace()), 0.0, block_size=4)
    asked.span = cast("Span", spans)
    kv = StuckExchange()
    pulling = Pulling(engine=cast("Any", None), thread=cast("Any", None), kv=cast("Any", kv))

    async def bring_in() -> None:
        if name == "pull":
            async with pulling.prefix(asked):
                pass
        else:
            await pulling.take_over(asked, SOURCE)

    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.01):
            await bring_in()

    assert spans.by_name == {name: "CancelledError"}
