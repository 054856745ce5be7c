"""Bits flip on the way from P to D: every flip is found, every answer is right."""

from __future__ import annotations

import random
from collections.abc import AsyncGenerator
from dataclasses import replace

import pytest
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet

from baton.core.ids import ReplicaId
from baton.engine.passes.echo import echo_output
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer
from baton.kv_transfer.receiving.fetch import FetchConfig
from baton.kv_transfer.transport.grpc import GrpcTransport

DECODE = ReplicaId("decode-2")


class Flips:
    """Of single bits, each piece having the same chance."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, rate: float) -> None:
        self.num_pieces = 0
        self.num_flips = 0
        self.transfers = set[str]()
        """Those that had one."""
        self._random = random.Random(7)
        self._rate = rate
        honest = GrpcTransport.open

        async def flipping(
            transport: GrpcTransport, address: str, request: OpenTransfer
        ) -> AsyncGenerator[KvPiece, None]:
            async for piece in honest(transport, address, request):
                yield self._maybe_flipped(piece)

        monkeypatch.setattr(GrpcTransport, "open", flipping)

    def _maybe_flipped(self, piece: KvPiece) -> KvPiece:
        self.num_pieces += 1
        if self._random.random() >= self._rate:
            return piece
        self.num_flips += 1
        self.transfers.add(piece.transfer_id)
        views = [bytearray(view) for view in piece.views]
        view = self._random.choice(views)
        view[self._random.randrange(len(view))] ^= 1 << self._random.randrange(8)
        return replace(piece, views=tuple(memoryview(view) for view in views))


def num_corrupt(fleet: Fleet) -> float:
    return fleet.replicas[DECODE].worker.metrics()["pieces_corrupt_total"]


def prompt(number: int) -> list[int]:
    return [2 + (number * 37 + at * at) % 250 for at in range(40)]


async def test_every_flip_is_found_and_every_answer_is_right(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    flips = Flips(monkeypatch, rate=0.1)
    async with running_fleet(changes={"transfer.max_corrupt": 1000}) as fleet:
        answers = []
        for number in range(60):
            answers.append(await fleet.ask(prompt(number)))
            await fleet.assert_nothing_is_held()  # or it might be too much for the next

        for number, answer in enumerate(answers):
            expected = echo_output(prompt(number), GREEDY.max_tokens or 0, VOCAB_SIZE)
            assert answer.tokens == expected
            assert answer.receipt.prefill_replica == "prefill-1"  # no prompt is computed again
        noted = [note for answer in answers for note in answer.receipt.notes]
        assert all("checksums: asked for again" in note for note in noted)
        assert num_corrupt(fleet) == len(noted) == flips.num_flips
        assert fleet.replicas[DECODE].worker.metrics()["pieces_asked_again_total"] == len(noted)
        assert 5 < len(flips.transfers) < 50 < flips.num_pieces
        await fleet.assert_nothing_is_held()


async def test_a_sender_of_corrupt_pieces_is_not_asked_for_a_while(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Flips(monkeypatch, rate=1.0)
    async with running_fleet(changes={"transfer.max_corrupt": 2}) as fleet:
        answers = [await fleet.ask(prompt(number)) for number in range(4)]

        for number, answer in enumerate(answers):
            expected = echo_output(prompt(number), GREEDY.max_tokens or 0, VOCAB_SIZE)
            assert answer.tokens == expected
        (bad,), *later = [answer.receipt.notes for answer in answers]
        assert "do not match their checksums" in bad
        num_bad = FetchConfig().max_asked_again + 1
        why = f"prefill-1 was not asked: it has sent {num_bad} corrupt pieces of KV"
        assert later == [(why,)] * 3
        address = fleet.replicas[ReplicaId("prefill-1")].info.address
        metrics = fleet.replicas[DECODE].worker.metrics()
        assert metrics[f'pieces_corrupt_by_source_total{{source="{address}"}}'] == num_bad
        assert metrics["sources_avoided"] == 1
        await fleet.assert_nothing_is_held()
