"""What a receipt says of a request that did not go the usual way."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from dataclasses import replace
from functools import partial

import pytest
from tests.in_process_fleet import GREEDY, Fleet, echo_engine, running_fleet
from torch import Tensor

from baton.core.errors import TransferCut
from baton.core.ids import ReplicaId, new_epoch, new_request_id
from baton.core.messages import GenerateRequest, Receipt
from baton.core.replicas import Role
from baton.decode_service.generating import Generating
from baton.decode_service.session import GatewaySession
from baton.engine.engine import Engine
from baton.engine.request.step_report import StepReport
from baton.engine.step_hooks import ALONE, StepHooks
from baton.gateway.requests.generations.generation import Generation
from baton.kv_transfer.handoff.messages import KvPiece, OpenTransfer, Outcome, SettleTransfer
from baton.kv_transfer.transport.grpc import GrpcTransport

PROMPT = tuple(range(3, 40))
LONG = replace(GREEDY, max_tokens=60)


async def stopped_after(fleet: Fleet, num_tokens: int) -> tuple[Receipt, int]:
    """The receipt of a request that was taken back, and how many tokens had come by then."""
    generation = Generation(
        request_id=new_request_id(), prompt=PROMPT, sampling=replace(LONG, max_tokens=1500)
    )
    running = await fleet.dispatcher.start(generation)
    num_received = 0
    async for update in running:
        num_received += len(update.tokens)
        if num_received >= num_tokens:
            break
    await running.stop(num_received)
    return running.receipt, num_received


@pytest.mark.parametrize("num_prefill", [0, 1])
@pytest.mark.parametrize("num_tokens", [1, 2, 20])
async def test_a_request_that_is_taken_back_counts_what_was_computed_so_far(
    num_prefill: int, num_tokens: int
) -> None:
    async with running_fleet(prefill=num_prefill) as fleet:
        receipt, num_received = await stopped_after(fleet, num_tokens)

        assert receipt.output_tokens == num_received
        assert receipt.computed_tokens == len(PROMPT) + num_received - 1


async def test_the_kv_that_travelled_is_counted_although_a_stop_string_ends_the_request() -> None:
    async with running_fleet(prefill=1) as fleet:
        receipt, _ = await stopped_after(fleet, 5)

        layout = fleet.engines[next(iter(fleet.engines))].pool.layout
        assert receipt.kv_bytes == layout.num_blocks_for(len(PROMPT)) * layout.block_bytes
        assert receipt.transport == "grpc"
        assert receipt.transfer_ms > 0


async def test_a_prompt_computed_twice_because_its_kv_was_lost_counts_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def cut(self: GrpcTransport, address: str, request: object):  # type: ignore[no-untyped-def]
        raise TransferCut("the link is down")
        yield

    monkeypatch.setattr(GrpcTransport, "open", cut)
    async with running_fleet(prefill=1) as fleet:
        answer = await fleet.ask(PROMPT, LONG)

        assert answer.receipt.prefill_replica == "prefill-1"
        assert answer.receipt.kv_bytes == 0
        assert answer.receipt.computed_tokens == 2 * len(PROMPT) + LONG.max_tokens - 1


async def test_an_attempt_that_the_replica_gave_up_is_part_of_the_receipt() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        fleet.admit_no_prompts()
        engine = fleet.engines[next(id_ for id_ in fleet.engines if id_.startswith("decode"))]
        honest, num_asked = engine.runner.logits, 0

        def spoil_the_first(hidden: Tensor) -> Tensor:
            nonlocal num_asked
            num_asked += 1
            logits = honest(hidden)
            return logits * float("nan") if num_asked == 1 else logits

        engine.runner.logits = spoil_the_first  # type: ignore[method-assign]
        answer = await fleet.ask(PROMPT)

        refused, gave_up, refused_again = answer.receipt.notes
        assert "tokens queued" in refused
        assert "tokens queued" in refused_again
        assert "not finite" in gave_up
        assert answer.receipt.attempts == 2
        assert answer.receipt.computed_tokens == 2 * len(PROMPT) + GREEDY.max_tokens - 1


def test_of_a_request_that_moved_no_more_is_cached_than_its_prompt_has() -> None:
    message = GenerateRequest(
        request_id=new_request_id(), attempt=2, prompt=PROMPT, output=(5, 6, 7, 8)
    )
    session = GatewaySession(new_epoch())
    generating = Generating(
        message, session, arrived_at=0.0, block_size=4, num_taken_over=len(PROMPT) + 3
    )

    assert generating.receipt("d").cached_tokens == len(PROMPT)


def limited(role: Role, whose: Role, max_model_len: int) -> Engine:
    engine = echo_engine(role)
    if role is whose:
        engine.max_model_len = max_model_len
    return engine


@pytest.mark.parametrize(
    ("whose", "num_tokens"),
    [(Role.PREFILL, GREEDY.max_tokens), (Role.DECODE, 1)],
    ids=["a shorter context on P", "a shorter context on D"],
)
async def test_the_decode_replica_alone_says_when_the_context_is_full(
    whose: Role, num_tokens: int
) -> None:
    async with running_fleet(
        make_engine=lambda role: limited(role, whose, len(PROMPT) + 1)
    ) as fleet:
        answer = await fleet.ask(PROMPT)

        assert answer.receipt.prefill_replica == "prefill-1"
        assert answer.receipt.attempts == 1
        assert len(answer.tokens) == num_tokens
        await fleet.assert_nothing_is_held()


async def test_a_piece_that_is_corrupt_before_the_first_token_is_named_in_the_notes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    honest = GrpcTransport.open
    num_pieces, num_steps, is_aborted = 0, 0, False

    async with running_fleet(make_engine=partial(echo_engine, prefill_chunk=4)) as fleet:
        name = ReplicaId("prefill-1")
        engine, core = fleet.engines[name], fleet.replicas[name].worker.core
        step, settle = engine.step, core.kv.sender.settle

        async def corrupt(
            self: GrpcTransport, address: str, request: OpenTransfer
        ) -> AsyncGenerator[KvPiece, None]:
            nonlocal num_pieces
            async for piece in honest(self, address, request):
                num_pieces += 1
                core.thread.post(lambda: None)  # there is work now
                yield replace(
                    piece, views=tuple(memoryview(bytes(view.nbytes)) for view in piece.views)
                )

        def halting(hooks: StepHooks = ALONE) -> StepReport:
            """A chunk a piece that has come; the last one once the receiver has given up."""
            nonlocal num_steps
            if not is_aborted and (num_steps > num_pieces or num_steps == len(PROMPT) // 4):
                return StepReport()
            num_steps += bool(engine.request_ids)
            return step(hooks)

        def heard(request: SettleTransfer) -> Outcome:
            nonlocal is_aborted
            is_aborted = True
            return settle(request)

        monkeypatch.setattr(GrpcTransport, "open", corrupt)
        monkeypatch.setattr(engine, "step", halting)
        monkeypatch.setattr(core.kv.sender, "settle", heard)
        answer = await fleet.ask(PROMPT)

        [note] = answer.receipt.notes
        assert "do not match their checksums" in note
        assert answer.receipt.prefill_replica == ""
        await fleet.assert_nothing_is_held()
