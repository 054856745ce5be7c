"""A prompt computed by one replica and continued by another, over real gRPC."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Sequence
from dataclasses import replace

import pytest
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Answer, Fleet, echo_engine, running_fleet

from baton.core.errors import TransferCut
from baton.core.ids import ReplicaId, new_epoch, new_request_id
from baton.core.messages import GenerateRequest
from baton.core.replicas import Role
from baton.core.sampling import FinishReason
from baton.decode_service.worker import DecodeWorker
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_output
from baton.engine.schedule import scheduler
from baton.kv_transfer.handoff.auditor import AuditReport, audit
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer
from baton.kv_transfer.transport.grpc import GrpcTransport
from baton.replica_core import replica_core

DECODE = ReplicaId("decode-2")
PROMPT = [7, 3, 9, 1, 4, 4, 8, 2, 6, 5, 11]


def expected(prompt: list[int], num_tokens: int = GREEDY.max_tokens) -> list[int]:
    return echo_output(prompt, num_tokens, VOCAB_SIZE)


async def test_a_prompt_prefilled_elsewhere_is_answered_as_if_computed_here() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        answer = await fleet.ask(PROMPT)

        assert answer.tokens == expected(PROMPT)
        assert answer.finish_reason is FinishReason.LENGTH
        assert answer.receipt.prefill_replica == "prefill-1"
        assert answer.receipt.decode_replica == "decode-2"
        assert answer.receipt.transport == "grpc"
        assert answer.receipt.kv_bytes == 3 * fleet.engines[DECODE].pool.layout.block_bytes
        assert answer.receipt.computed_tokens == len(PROMPT) + GREEDY.max_tokens - 1
        await fleet.assert_nothing_is_held()


async def test_without_a_prefill_pool_the_same_code_is_an_aggregated_server() -> None:
    async with running_fleet(prefill=0, decode=1) as fleet:
        answer = await fleet.ask(PROMPT)

        assert answer.tokens == expected(PROMPT)
        assert answer.receipt.prefill_replica == ""
        await fleet.assert_nothing_is_held()


async def test_a_repeated_prompt_moves_only_the_blocks_the_decode_replica_lacks() -> None:
    async with running_fleet() as fleet:
        first = await fleet.ask(PROMPT)
        again = await fleet.ask(PROMPT)

        assert again.tokens == first.tokens
        assert again.receipt.cached_tokens == 8
        assert again.receipt.kv_bytes < first.receipt.kv_bytes
        await fleet.assert_nothing_is_held()


async def test_many_requests_at_once_get_their_own_answers() -> None:
    prompts = [[n, *PROMPT, n + 1] * (1 + n % 5) for n in range(40)]
    async with running_fleet(prefill=2, decode=2) as fleet:
        answers = await asyncio.gather(*(fleet.ask(prompt) for prompt in prompts))

        assert [a.tokens for a in answers] == [expected(prompt) for prompt in prompts]
        await fleet.assert_nothing_is_held()


async def test_a_single_token_needs_no_handoff_of_kv() -> None:
    async with running_fleet() as fleet:
        answer = await fleet.ask(PROMPT, replace(GREEDY, max_tokens=1))

        assert answer.tokens == expected(PROMPT, 1)
        assert answer.finish_reason is FinishReason.LENGTH
        await fleet.assert_nothing_is_held()


async def test_an_equal_prompt_waits_for_the_kv_that_is_on_its_way(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second choice of a request comes with the first one's first token, before its KV."""
    honest, may_travel = GrpcTransport.open, asyncio.Event()

    async def travel_late(
        self: GrpcTransport, address: str, request: OpenTransfer
    ) -> AsyncGenerator[KvPiece, None]:
        await may_travel.wait()
        async for piece in honest(self, address, request):
            yield piece

    monkeypatch.setattr(GrpcTransport, "open", travel_late)
    async with running_fleet() as fleet:
        has_token = asyncio.Event()
        first = asyncio.create_task(fleet.ask(PROMPT, on_token=lambda _: has_token.set()))
        await has_token.wait()

        second = asyncio.create_task(ask_directly(fleet, choice=1))
        other = await ask_directly(fleet, prompt=[1, *PROMPT])
        assert not second.done()
        may_travel.set()

        assert other.tokens == expected([1, *PROMPT])
        assert (await first).tokens == (await second).tokens == expected(PROMPT)
        assert (await second).receipt.cached_tokens == 8
        await fleet.assert_nothing_is_held()


async def test_an_equal_prompt_waits_no_longer_for_kv_that_will_not_come(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest, is_cut = GrpcTransport.open, asyncio.Event()

    async def cut(
        self: GrpcTransport, address: str, request: OpenTransfer
    ) -> AsyncGenerator[KvPiece, None]:
        await is_cut.wait()
        raise TransferCut("the link is down")
        async for piece in honest(self, address, request):
            yield piece

    monkeypatch.setattr(GrpcTransport, "open", cut)
    async with running_fleet() as fleet:
        has_token = asyncio.Event()
        first = asyncio.create_task(fleet.ask(PROMPT, on_token=lambda _: has_token.set()))
        await has_token.wait()
        second = asyncio.create_task(ask_directly(fleet, choice=1))
        left = asyncio.create_task(ask_directly(fleet, choice=2))
        await asyncio.sleep(0)

        left.cancel()
        is_cut.set()

        assert (await first).tokens == (await second).tokens == expected(PROMPT)
        await fleet.assert_nothing_is_held()


async def ask_directly(fleet: Fleet, *, prompt: Sequence[int] = PROMPT, choice: int = 0) -> Answer:
    """Of the decode replica, naming no prefill replica."""
    worker = fleet.replicas[DECODE].worker
    assert isinstance(worker, DecodeWorker)
    session, answer = worker.open_session(new_epoch()), Answer()
    message = GenerateRequest(
        request_id=new_request_id(),
        attempt=1,
        prompt=tuple(prompt),
        sampling=replace(GREEDY, choice=choice),
    )
    worker.generate(session, message)
    try:
        while answer.finish_reason is None:
            frame = await session.next_frame()
            assert frame is not None
            for update in frame.updates:
                assert update.error is None
                answer.tokens += update.tokens
                answer.finish_reason = update.finish_reason
                answer.receipt = update.receipt or answer.receipt
    finally:
        worker.close_session(session)
    return answer


def narrow_decode(role: Role) -> Engine:
    return echo_engine(role, max_running=2 if role is Role.DECODE else 64)


async def test_a_prompt_computed_locally_is_not_overtaken_for_ever_by_handoffs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Handoffs are admitted first; a steady stream of them must not keep every place taken."""
    monkeypatch.setattr(scheduler, "MAX_OVERTAKEN", 4)
    async with running_fleet(make_engine=narrow_decode, local_prefill_tokens=3) as fleet:
        num_finished, is_answered = 0, False

        async def ask_on_and_on(number: int) -> None:
            nonlocal num_finished
            for turn in range(12):
                if is_answered:
                    return
                await fleet.ask([number, turn, *PROMPT], replace(GREEDY, max_tokens=60))
                num_finished += 1

        streams = [asyncio.create_task(ask_on_and_on(number)) for number in range(8)]
        while num_finished < 8:
            await asyncio.sleep(0.001)
        num_before = num_finished
        local: Answer = await fleet.ask(PROMPT[:3])
        num_overtaken, is_answered = num_finished - num_before, True
        await asyncio.gather(*streams)

        assert local.tokens == expected(PROMPT[:3])
        assert local.receipt.prefill_replica == ""
        assert num_overtaken <= 4 + 2 * len(streams)
        await fleet.assert_nothing_is_held()


async def test_the_engine_goes_on_while_its_books_are_judged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    has_gone_on = threading.Event()

    def patient_audit(*census: object) -> AuditReport:
        assert has_gone_on.wait(120)
        return audit(*census)  # type: ignore[arg-type]

    monkeypatch.setattr(replica_core, "audit", patient_audit)
    async with running_fleet() as fleet:
        worker = fleet.replicas[DECODE].worker
        auditing = asyncio.create_task(worker.core.audit())
        await asyncio.sleep(0)

        answer = await fleet.ask(PROMPT)
        has_gone_on.set()

        assert answer.tokens == expected(PROMPT)
        assert (await auditing).violations == ()
