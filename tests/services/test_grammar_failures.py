"""Grammars that are refused, slow or too costly, and replicas and clients that leave meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.grammar_compilers import LETTERS, GatedCompiler, RefusingCompiler
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Answer, Fleet, echo_engine, running_fleet

from baton.core.errors import DeadlineExceeded, InvalidRequest
from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.engine.engine import Engine
from baton.engine.grammar.grammar import GrammarCompiler
from baton.engine.passes.echo import echo_output

PROMPT = list(range(3, 40))
EXPECTED = echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)
BOUND = replace(GREEDY, grammar=LETTERS)
PREFILL = ReplicaId("prefill-1")


def engines(
    *, prefill: GrammarCompiler | None = None, decode: GrammarCompiler | None = None
) -> Callable[[Role], Engine]:
    def make(role: Role) -> Engine:
        engine = echo_engine(role)
        engine.grammars = prefill if role is Role.PREFILL else decode
        return engine

    return make


async def begun(compiler: GatedCompiler) -> None:
    assert await asyncio.to_thread(compiler.has_begun.wait, 60)


@pytest.mark.parametrize("num_prefill", [0, 1])
async def test_a_grammar_that_takes_long_delays_its_own_request_alone(num_prefill: int) -> None:
    slow = GatedCompiler()
    make_engine = engines(prefill=slow, decode=slow)
    async with running_fleet(prefill=num_prefill, make_engine=make_engine) as fleet:
        waiting = asyncio.create_task(fleet.ask(PROMPT, BOUND))
        await begun(slow)

        assert (await fleet.ask(PROMPT)).tokens == EXPECTED
        assert not waiting.done()
        slow.gate.set()

        answer = await waiting
        assert answer.tokens == EXPECTED
        assert answer.receipt.attempts == 1
        await fleet.assert_nothing_is_held()


async def test_the_prompt_is_computed_elsewhere_while_the_grammar_is_compiled_here() -> None:
    slow = GatedCompiler()
    make_engine = engines(prefill=GatedCompiler(is_open=True), decode=slow)
    async with running_fleet(make_engine=make_engine) as fleet:
        has_token = asyncio.Event()
        waiting = asyncio.create_task(fleet.ask(PROMPT, BOUND, on_token=lambda _: has_token.set()))
        await has_token.wait()

        assert not slow.matchers
        slow.gate.set()
        answer = await waiting

        assert answer.tokens == EXPECTED
        assert answer.receipt.kv_bytes > 0
        assert slow.matchers[0].accepted == EXPECTED[:-1]


async def test_a_prefill_replica_that_dies_while_the_grammar_is_compiled_costs_nothing() -> None:
    slow = GatedCompiler()
    make_engine = engines(prefill=GatedCompiler(is_open=True), decode=slow)
    async with running_fleet(make_engine=make_engine) as fleet:
        has_token = asyncio.Event()
        waiting = asyncio.create_task(fleet.ask(PROMPT, BOUND, on_token=lambda _: has_token.set()))
        await has_token.wait()

        await fleet.crash(PREFILL)
        slow.gate.set()

        assert (await waiting).tokens == EXPECTED
        assert slow.matchers[0].accepted == EXPECTED[:-1]
        await fleet.assert_nothing_is_held()


async def cancel(fleet: Fleet, asking: asyncio.Task[Answer]) -> None:
    asking.cancel()
    with suppress(asyncio.CancelledError):
        await asking
    await fleet.assert_nothing_is_held()


@pytest.mark.parametrize(
    ("num_prefill", "is_slow_on"), [(0, Role.DECODE), (1, Role.DECODE), (1, Role.PREFILL)]
)
async def test_a_client_that_leaves_while_the_grammar_is_compiled_leaves_nothing_behind(
    num_prefill: int, is_slow_on: Role
) -> None:
    slow, fast = GatedCompiler(), GatedCompiler(is_open=True)
    make_engine = (
        engines(prefill=fast, decode=slow)
        if is_slow_on is Role.DECODE
        else engines(prefill=slow, decode=fast)
    )
    async with running_fleet(prefill=num_prefill, make_engine=make_engine) as fleet:
        asking = asyncio.create_task(fleet.ask(PROMPT, BOUND))
        await begun(slow)

        await cancel(fleet, asking)

        slow.gate.set()
        assert (await fleet.ask(PROMPT, BOUND)).tokens == EXPECTED
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("num_prefill", [0, 1])
async def test_a_deadline_passes_while_the_grammar_is_compiled(num_prefill: int) -> None:
    slow = GatedCompiler()
    make_engine = engines(prefill=slow, decode=slow)
    async with running_fleet(prefill=num_prefill, make_engine=make_engine) as fleet:
        with pytest.raises(DeadlineExceeded):
            await fleet.ask(PROMPT, BOUND, time_left_s=0.2)

        await fleet.assert_nothing_is_held()
        slow.gate.set()


@pytest.mark.parametrize("num_prefill", [0, 1])
async def test_what_is_no_grammar_is_the_callers_mistake(num_prefill: int) -> None:
    make_engine = engines(prefill=RefusingCompiler(), decode=RefusingCompiler())
    async with running_fleet(prefill=num_prefill, decode=2, make_engine=make_engine) as fleet:
        with pytest.raises(InvalidRequest, match="is no grammar") as refusal:
            await fleet.ask(PROMPT, BOUND)

        assert refusal.value.field == "response_format"
        assert (await fleet.ask(PROMPT)).tokens == EXPECTED
        await fleet.assert_nothing_is_held()


async def test_a_refusal_does_not_wait_for_a_prefill_replica_to_come_to_the_same_end() -> None:
    slow = GatedCompiler()
    make_engine = engines(prefill=slow, decode=RefusingCompiler())
    async with running_fleet(make_engine=make_engine) as fleet:
        with pytest.raises(InvalidRequest, match="is no grammar"):
            await fleet.ask(PROMPT, BOUND)

        slow.gate.set()
        await fleet.assert_nothing_is_held()


async def test_a_prefill_replica_that_knows_no_grammars_is_done_without() -> None:
    make_engine = engines(prefill=None, decode=GatedCompiler(is_open=True))
    async with running_fleet(make_engine=make_engine) as fleet:
        answer = await fleet.ask(PROMPT, BOUND)

        assert answer.tokens == EXPECTED
        assert answer.receipt.prefill_replica == ""
        assert "leave response_format out" in answer.receipt.notes[0]


async def test_a_model_that_cannot_follow_a_grammar_says_so() -> None:
    async with running_fleet(prefill=0) as fleet:
        with pytest.raises(InvalidRequest, match="does not support grammars") as refusal:
            await fleet.ask(PROMPT, BOUND)

        assert refusal.value.field == "response_format"


@pytest.mark.parametrize("num_prefill", [0, 1])
async def test_a_grammar_that_becomes_too_costly_fails_its_own_request_alone(
    num_prefill: int,
) -> None:
    costly = GatedCompiler(is_open=True, max_accepted=5)
    make_engine = engines(prefill=costly, decode=costly)
    async with running_fleet(prefill=num_prefill, make_engine=make_engine) as fleet:
        num_tokens: list[int] = []

        failing, *others = await asyncio.gather(
            fleet.ask(PROMPT, BOUND, on_token=num_tokens.append),
            *(fleet.ask(PROMPT) for _ in range(3)),
            return_exceptions=True,
        )

        assert isinstance(failing, InvalidRequest)
        assert num_tokens[-1] == 5
        assert [other.tokens for other in others] == [EXPECTED] * 3  # type: ignore[union-attr]
        await fleet.assert_nothing_is_held()
