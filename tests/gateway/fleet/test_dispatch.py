"""Where requests go, and what becomes of them. The replicas say what the tests script."""

from __future__ import annotations

import asyncio
import gc
import weakref
from dataclasses import replace

import pytest
from tests.gateway.fleet.asking import ask, generation, tokens_of
from tests.gateway.fleet.known_replicas import make_replica
from tests.gateway.fleet.scripted_replica import (
    Script,
    ScriptedReplica,
    answers,
    breaks_after,
    dispatching_to,
    silent,
    snapshot,
    until,
    update,
)

from baton.core.ids import RequestId
from baton.core.messages import GenerateRequest, Pooling
from baton.core.replicas import Role
from baton.core.sampling import FinishReason
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.gateway.fleet.placement.decision_log import DecisionLog
from baton.gateway.requests.generations.generation import Generation
from baton.router.cache.prompt_names import PromptNames


async def test_another_choice_of_a_request_goes_where_the_first_one_runs() -> None:
    one, other = ScriptedReplica("one", silent), ScriptedReplica("other", silent)
    async with dispatching_to(one, other) as dispatcher:
        first = await dispatcher.start(generation("first"))

        near = replace(generation("second"), near=RequestId("first"))
        second = await dispatcher.start(near)  # though the other replica is emptier

        await until(lambda: len(one.received) + len(other.received) == 2)
        [received] = [replica.received for replica in (one, other) if replica.received]
        assert [request.request_id for request in received] == ["first", "second"]
        assert second.receipt.placement.startswith("beside another choice of this request; ")
        await first.stop(0)


async def test_a_choice_whose_neighbour_is_over_goes_anywhere() -> None:
    replica = ScriptedReplica("d", answers(1))
    async with dispatching_to(replica) as dispatcher:
        await ask(dispatcher)

        second = await dispatcher.start(replace(generation("s"), near=RequestId("r")))

        assert second.receipt.placement == "no prefill replica: computed locally"


async def test_a_prompt_is_expected_where_it_was_placed_for_as_long_as_it_is_on_its_way() -> None:
    replica = ScriptedReplica("d", lambda request: [update(request, 1)], silent)
    async with dispatching_to(replica) as dispatcher:
        fleet = dispatcher.fleet
        await fleet.apply(snapshot(replica.info, PREFILL))
        prompt = tuple(range(100))
        names = PromptNames(prompt, b"tenant")
        fleet.view(names).prefill[0].candidate.credit_tokens = 1000  # as if it had spoken

        def expected() -> list[int]:
            view = fleet.view(names)
            return [one.num_expected_tokens for one in (*view.decode, *view.prefill)]

        running = await dispatcher.start(replace(generation(), prompt=prompt))
        assert expected() == [100, 100]
        assert fleet.view(names).prefill[0].candidate.num_open_tokens == 100
        equal = await dispatcher.start(replace(generation("equal"), prompt=prompt))
        assert fleet.view(names).prefill[0].candidate.num_open_tokens == 101

        await anext(aiter(running))  # the first token: the prefill is over
        assert fleet.view(names).prefill[0].candidate.num_open_tokens == 1
        await equal.stop(0)
        assert expected() == [100, 0]

        await running.stop(1)
        assert expected() == [0, 0]


async def test_nothing_keeps_a_request_in_memory_that_was_stopped_long_before_its_limit() -> None:
    async with dispatching_to(ScriptedReplica("d", answers(1))) as dispatcher:
        running = await dispatcher.start(generation(time_left_s=600))
        assert await tokens_of(running) == [1]
        await running.stop(1)
        gone = weakref.ref(running)

        del running
        gc.collect()

        assert gone() is None


PREFILL = make_replica("p", role=Role.PREFILL)


WITH_PROMPT_LOGPROBS = replace(generation().sampling, num_prompt_logprobs=0)


async def placed_with_a_prefill_pool(asked: Generation, *scripts: Script) -> list[GenerateRequest]:
    """What a decode replica receives of a long request, while a prefill replica stands by."""
    replica = ScriptedReplica("d", *scripts)
    async with dispatching_to(replica) as dispatcher:
        await dispatcher.fleet.apply(snapshot(replica.info, PREFILL))
        running = await dispatcher.start(replace(asked, prompt=tuple(range(100))))
        await tokens_of(running)
        await running.stop(0)
    return replica.received


async def test_an_embedding_is_never_computed_elsewhere() -> None:
    [plain] = await placed_with_a_prefill_pool(generation(), answers(1))
    [pooled] = await placed_with_a_prefill_pool(
        replace(generation(), pooling=Pooling.MEAN),
        lambda request: [update(request, finish=FinishReason.STOP)],
    )

    assert plain.prefill == (PREFILL.endpoint,)
    assert (pooled.prefill, pooled.pooling) == ((), Pooling.MEAN)


async def test_logprobs_of_the_prompt_are_computed_locally_but_only_once() -> None:
    first, second = await placed_with_a_prefill_pool(
        replace(generation(), sampling=WITH_PROMPT_LOGPROBS), breaks_after(1), answers(2)
    )

    assert first.prefill == ()
    assert second.prefill == (PREFILL.endpoint,)


async def test_a_request_that_cannot_be_written_leaves_no_place_taken() -> None:
    replica = ScriptedReplica("d", answers(1), max_open=1)
    async with dispatching_to(replica) as dispatcher:
        with pytest.raises(ValueError, match="out of range"):
            await dispatcher.start(replace(generation(), prompt=(1 << 32,)))

        assert dispatcher.fleet.connected[0].num_open == 0


async def test_an_attempt_that_cannot_be_followed_is_taken_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    replica = ScriptedReplica("d", silent, max_open=1)

    def fail(*_: object) -> None:
        raise RuntimeError("the log is full")

    async with dispatching_to(replica) as dispatcher:
        monkeypatch.setattr(DecisionLog, "sent", fail)
        with pytest.raises(RuntimeError, match="the log is full"):
            await dispatcher.start(generation())

        [link] = dispatcher.fleet.connected
        candidate = dispatcher.fleet.loads.candidate(link.info.epoch)
        assert link.num_open == 0
        assert candidate is not None and not candidate.open
        await until(lambda: replica.cancelled)


async def test_how_far_a_prompt_is_can_be_asked_until_its_first_token() -> None:
    replica = ScriptedReplica("d", silent, answers(1), max_open=1)
    async with dispatching_to(replica) as dispatcher:
        first, second = generation("first"), generation("second")
        running = await dispatcher.start(first)
        others = [asyncio.create_task(dispatcher.start(generation(f"{n}"))) for n in range(2)]
        await until(lambda: dispatcher.num_waiting == 2)
        waiting = asyncio.create_task(dispatcher.start(second))
        await until(lambda: dispatcher.progress(second))

        computed, queued = dispatcher.progress(first), dispatcher.progress(second)
        assert computed is not None and queued is not None
        assert (computed.state, computed.position) == ("computed", 0)
        assert 0 <= computed.processed < computed.total == len(first.prompt)
        assert (queued.state, queued.position, queued.processed) == ("queued", 2, 0)

        for task in others:
            task.cancel()
        await running.stop(0)
        answered = await waiting
        _ = [update async for update in answered]
        assert dispatcher.progress(second) is None is dispatcher.progress(generation("unknown"))
        await answered.stop(1)


async def ask_and_stop(dispatcher: ReplicaDispatcher, asked: Generation) -> None:
    running = await dispatcher.start(asked)
    updates = [update async for update in running]
    await running.stop(sum(len(update.tokens) for update in updates))


async def test_tenants_are_charged_for_what_their_requests_compute() -> None:
    scripts = (silent, answers(*range(9)), answers(1), answers(1), answers(1))
    replica = ScriptedReplica("d", *scripts, max_open=1)
    async with dispatching_to(replica) as dispatcher:
        blocker = await dispatcher.start(generation("blocker"))
        tasks = []
        for name in ("long-1", "long-2", "short-1", "short-2"):
            asked = replace(generation(name), tenant=name[:-2])
            tasks.append(asyncio.create_task(ask_and_stop(dispatcher, asked)))
            await until(lambda: dispatcher.num_waiting == len(tasks))
        await blocker.stop(0)
        await asyncio.gather(*tasks)

        names = [request.request_id for request in replica.received]
        assert names == ["blocker", "long-1", "short-1", "short-2", "long-2"]
