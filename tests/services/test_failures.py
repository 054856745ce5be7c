"""What happens when replicas die, clients leave, and pools are full. No Ray, real gRPC."""

from __future__ import annotations

import asyncio
import random
import threading
from contextlib import suppress
from dataclasses import replace

import pytest
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, echo_engine, running_fleet

from baton.core.errors import DeadlineExceeded, InvalidRequest, Overloaded, Unavailable
from baton.core.ids import ReplicaId, RequestId, TransferId
from baton.core.messages import PrefillRequest
from baton.core.replicas import ReplicaAddress, Role
from baton.core.sampling import SamplingParams
from baton.decode_service.prefill_client import GrpcPrefillClient
from baton.engine.engine import Engine
from baton.engine.passes.echo import echo_output
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.kv_transfer.transport.grpc import GrpcTransport
from baton.prefill_service.worker import PrefillWorker
from baton.proto.channels import Channels
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

PROMPT = list(range(3, 40))
LONG = replace(GREEDY, max_tokens=60)


def expected(prompt: list[int], num_tokens: int) -> list[int]:
    return echo_output(prompt, num_tokens, VOCAB_SIZE)


async def test_prompts_nobody_fetches_keep_no_more_than_their_share_of_a_prefill_replica() -> None:
    async with running_fleet(changes={"transfer.max_held_fraction": 0.05}) as fleet:
        prefill = fleet.replicas[ReplicaId("prefill-1")]
        p, d = prefill.info, fleet.replicas[ReplicaId("decode-2")].info
        silent = PrefillRequest(
            request_id=RequestId("r"),
            transfer_id=TransferId("t"),
            receiver_epoch=d.epoch,
            layout=d.layout,
            prompt=tuple(range(100, 160)),
            time_left_ms=30_000,
        )
        channels = Channels()
        address = ReplicaAddress(replica_id=p.replica_id, epoch=p.epoch, address=p.address)
        call = GrpcPrefillClient(channels).prefill(address, silent)
        for _ in range(2):
            await anext(call)  # granted, done

        answer = await fleet.ask(PROMPT)
        await call.aclose()
        assert isinstance(prefill.worker, PrefillWorker)
        held = prefill.worker.core.kv.sender.held
        await until(lambda: held.num_blocks == 0)
        later = await fleet.ask(PROMPT[1:])

        assert answer.tokens == expected(PROMPT, GREEDY.max_tokens or 0)
        assert [("transfer.max_held_fraction" in note) for note in answer.receipt.notes] == [True]
        assert (later.receipt.notes, later.receipt.prefill_replica) == ((), "prefill-1")
        await channels.close()
        await fleet.assert_nothing_is_held()


async def test_a_decode_replica_that_dies_in_mid_stream_loses_and_repeats_no_token() -> None:
    async with running_fleet(prefill=1, decode=2) as fleet:

        async def kill(num_tokens: int) -> None:
            if num_tokens >= 20 and len(fleet.replicas) == 3:
                [link] = [one for one in fleet.dispatcher.fleet.connected if one.num_open]
                await fleet.crash(link.info.replica_id)
                go_on()

        with fleet.halting_at(20) as go_on:
            answer = await fleet.ask(PROMPT, LONG, on_token=kill)

        assert len(fleet.replicas) == 2
        assert answer.tokens == expected(PROMPT, 60)
        assert answer.receipt.attempts == 2
        assert "was lost" in answer.receipt.notes[0]
        await fleet.assert_nothing_is_held()


async def test_sampled_tokens_continue_elsewhere_as_they_would_have_here() -> None:
    sampling = SamplingParams(temperature=60.0, seed=7, max_tokens=60)  # the echo's peak is 100
    async with running_fleet(prefill=1, decode=2) as fleet:
        undisturbed = await fleet.ask(PROMPT, sampling)

        async def kill(num_tokens: int) -> None:
            if num_tokens >= 20 and len(fleet.replicas) == 3:
                [link] = [one for one in fleet.dispatcher.fleet.connected if one.num_open]
                await fleet.crash(link.info.replica_id)
                go_on()

        with fleet.halting_at(20) as go_on:
            answer = await fleet.ask(PROMPT, sampling, on_token=kill)

        assert undisturbed.tokens != expected(PROMPT, 60)
        assert answer.tokens == undisturbed.tokens
        assert answer.receipt.attempts == 2


async def test_a_prefill_replica_that_dies_is_replaced_by_another() -> None:
    async with running_fleet(prefill=2, decode=1) as fleet:
        first = await fleet.ask(PROMPT)
        await fleet.crash(first.receipt.prefill_replica)  # type: ignore[arg-type]

        answer = await fleet.ask([9, *PROMPT])  # the dispatcher has not heard of it yet

        assert answer.tokens == expected([9, *PROMPT], GREEDY.max_tokens)
        assert answer.receipt.prefill_replica not in ("", first.receipt.prefill_replica)
        await fleet.assert_nothing_is_held()


async def test_without_any_prefill_replica_left_the_decode_replica_computes_the_prompt() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        first = await fleet.ask(PROMPT)
        await fleet.crash(first.receipt.prefill_replica)  # type: ignore[arg-type]

        answer = await fleet.ask([9, *PROMPT])

        assert answer.tokens == expected([9, *PROMPT], GREEDY.max_tokens)
        assert answer.receipt.prefill_replica == ""
        knew = answer.receipt.placement.startswith("no prefill replica")
        assert knew or answer.receipt.notes
        await fleet.assert_nothing_is_held()


async def test_a_prefill_replica_that_dies_between_token_and_kv_costs_only_recomputation(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        from baton.core.errors import TransferCut

        async def cut(self: GrpcTransport, address: str, request: object):  # type: ignore[no-untyped-def]
            await asyncio.sleep(0.05)
            raise TransferCut("the link is down")
            yield

        monkeypatch.setattr(GrpcTransport, "open", cut)

        answer = await fleet.ask(PROMPT)

        assert answer.tokens == expected(PROMPT, GREEDY.max_tokens)
        assert answer.receipt.prefill_replica == "prefill-1"
        assert answer.receipt.kv_bytes == 0
        assert any("the link is down" in note for note in answer.receipt.notes)
        monkeypatch.undo()
        await fleet.assert_nothing_is_held()


async def test_eighty_requests_of_which_half_are_cancelled_leave_nothing_behind() -> None:
    rng = random.Random(5)
    async with running_fleet(prefill=2, decode=2, max_waiting=200) as fleet:

        async def one(number: int) -> None:
            prompt = [number % VOCAB_SIZE, *PROMPT[: 5 + number % 30]]
            asking = asyncio.create_task(fleet.ask(prompt, LONG))
            if number % 2:
                await asyncio.sleep(rng.random() * 0.5)
                asking.cancel()
                with suppress(asyncio.CancelledError):
                    await asking
            else:
                assert (await asking).tokens == expected(prompt, 60)

        await asyncio.gather(*(one(number) for number in range(80)))

        await fleet.assert_nothing_is_held()


def small_engine(role: Role) -> Engine:
    return echo_engine(role, num_blocks=24 if role is Role.DECODE else 256)


async def test_a_decode_pool_too_small_for_all_preempts_and_still_answers_right() -> None:
    async with running_fleet(make_engine=small_engine) as fleet:
        prompts = [[n, *PROMPT[:10]] for n in range(12)]
        askings = [fleet.ask(prompt, LONG) for prompt in prompts]

        # Each grows to 18 blocks of 24.
        answers = await fleet.ask_all(askings, at=ReplicaId("decode-2"), first=[0, 1])

        assert [a.tokens for a in answers] == [expected(prompt, 60) for prompt in prompts]
        assert fleet.engines["decode-2"].stats.num_preempted > 0  # type: ignore[index]
        await fleet.assert_nothing_is_held()


async def test_a_full_decode_pool_makes_requests_wait_at_the_gateway() -> None:
    changes = {"decode.max_open": 2}
    async with running_fleet(changes=changes, max_waiting=4) as fleet:
        with fleet.standing_still(ReplicaId("decode-2")):  # so that nobody is done yet
            asking = [asyncio.create_task(fleet.ask([n, *PROMPT], LONG)) for n in range(6)]
            await until(lambda: fleet.dispatcher.num_waiting == 4)

            with pytest.raises(Overloaded):
                await fleet.ask(PROMPT)
            assert max(link.num_open for link in fleet.dispatcher.fleet.connected) == 2
        answers = await asyncio.gather(*asking)

        assert [a.tokens for a in answers] == [expected([n, *PROMPT], 60) for n in range(6)]


async def test_a_prompt_refused_by_an_overloaded_prefill_replica_is_computed_locally() -> None:
    async with running_fleet() as fleet:
        fleet.admit_no_prompts()
        answer = await fleet.ask(PROMPT)

        assert answer.tokens == expected(PROMPT, GREEDY.max_tokens)
        assert answer.receipt.prefill_replica == ""
        assert "tokens queued" in answer.receipt.notes[0]


async def test_a_prompt_longer_than_may_be_queued_is_computed_where_nothing_is_queued() -> None:
    async with running_fleet(changes={"prefill.max_queued_tokens": 8}) as fleet:
        answer = await fleet.ask(PROMPT)

        assert len(PROMPT) > 8
        assert answer.tokens == expected(PROMPT, GREEDY.max_tokens)
        assert answer.receipt.prefill_replica == "prefill-1"


async def test_a_deadline_ends_the_request_on_every_replica() -> None:
    async with running_fleet() as fleet:
        with pytest.raises(DeadlineExceeded):
            await fleet.ask(PROMPT, replace(GREEDY, max_tokens=2000), time_left_s=0.2)

        await fleet.assert_nothing_is_held()


async def test_a_prompt_that_no_replica_can_hold_is_the_callers_mistake() -> None:
    async with running_fleet() as fleet:
        with pytest.raises(InvalidRequest, match="shorten the prompt"):
            await fleet.ask(PROMPT * 100)

        assert (await fleet.ask(PROMPT)).tokens == expected(PROMPT, GREEDY.max_tokens)


async def test_no_decode_replica_at_all_is_unavailable_not_a_hang() -> None:
    async with running_fleet(prefill=1, decode=0, no_replica_grace_s=0.1) as fleet:
        with pytest.raises(Unavailable, match="no decode replica"):
            await fleet.ask(PROMPT)


async def test_a_request_waits_for_a_restarted_replica_and_goes_on_there() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        restarted = asyncio.Event()

        async def kill(num_tokens: int) -> None:
            if num_tokens >= 20 and not restarted.is_set():
                restarted.set()
                await fleet.crash("decode-2")  # type: ignore[arg-type]

        with fleet.halting_at(20):
            asking = asyncio.create_task(fleet.ask(PROMPT, LONG, on_token=kill))
            await restarted.wait()
        await asyncio.sleep(0.2)
        await fleet.add(Role.DECODE)

        answer = await asking

        assert answer.tokens == expected(PROMPT, 60)
        assert answer.receipt.decode_replica == "decode-3"


async def test_an_engine_that_fails_is_reported_and_its_requests_are_placed_again() -> None:
    async with running_fleet(prefill=0, decode=2) as fleet:
        broken = fleet.engines["decode-1"]  # type: ignore[index]

        def fail(*_: object) -> None:
            raise RuntimeError("the device fell off the bus")

        broken.runner.forward = fail  # type: ignore[method-assign, assignment]
        answers = await asyncio.gather(*(fleet.ask([n, *PROMPT]) for n in range(4)))

        assert [a.tokens for a in answers] == [
            expected([n, *PROMPT], GREEDY.max_tokens) for n in range(4)
        ]
        assert any("fell off the bus" in note for a in answers for note in a.receipt.notes)
        with pytest.raises(Exception, match="has died"):
            fleet.replicas["decode-1"].worker.core.check_health(limit_s=10)  # type: ignore[index]
        fleet.replicas.pop("decode-1")  # type: ignore[call-overload]
        await fleet.assert_nothing_is_held()


async def test_logits_that_are_not_finite_fail_the_request_and_are_never_cached() -> None:
    async with running_fleet(prefill=1, decode=1) as fleet:
        honest = {id_: engine.runner.logits for id_, engine in fleet.engines.items()}
        for engine in fleet.engines.values():
            logits = engine.runner.logits
            engine.runner.logits = lambda hidden, f=logits: f(hidden) * float("nan")  # type: ignore[method-assign, misc]

        with pytest.raises(Unavailable, match="not finite"):
            await fleet.ask(PROMPT)

        await fleet.assert_nothing_is_held()
        for id_, logits in honest.items():
            fleet.engines[id_].runner.logits = logits  # type: ignore[method-assign]
        answer = await fleet.ask(PROMPT)
        assert answer.tokens == expected(PROMPT, GREEDY.max_tokens)
        assert answer.receipt.cached_tokens == 0


async def test_a_dead_engine_ends_its_streams_so_that_requests_wait_for_another() -> None:
    async with running_fleet(prefill=0, decode=1) as fleet:

        def fail(*_: object) -> None:
            raise RuntimeError("the device fell off the bus")

        first = ReplicaId("decode-1")
        fleet.engines[first].runner.forward = fail  # type: ignore[method-assign, assignment]
        asking = asyncio.create_task(fleet.ask(PROMPT))
        while fleet.dispatcher.is_ready():
            await asyncio.sleep(0.01)
        await fleet.crash(first)
        await fleet.add(Role.DECODE)

        answer = await asking

        assert answer.tokens == expected(PROMPT, GREEDY.max_tokens)
        assert answer.receipt.decode_replica == "decode-2"


async def test_an_engine_that_dies_costs_a_request_one_attempt_only() -> None:
    changes = {"decode.max_open": 2}
    async with running_fleet(prefill=0, decode=2, changes=changes) as fleet:
        may_fail = threading.Event()

        def fail(*_: object) -> None:
            may_fail.wait(60)
            raise RuntimeError("the device fell off the bus")

        fleet.engines[ReplicaId("decode-1")].runner.forward = fail  # type: ignore[method-assign, assignment]
        with fleet.standing_still(ReplicaId("decode-2")):
            asking = [asyncio.create_task(fleet.ask([n, *PROMPT], LONG)) for n in range(4)]
            await until(
                lambda: [one.num_open for one in fleet.dispatcher.fleet.connected] == [2, 2]
            )
            may_fail.set()
        answers = await asyncio.gather(*asking)

        assert sorted(a.receipt.attempts for a in answers) == [1, 1, 2, 2]


async def test_a_gateway_that_comes_and_goes_leaves_no_task_behind() -> None:
    async with running_fleet(prefill=0, decode=1) as fleet:
        own = fleet.dispatcher.fleet.links
        while not all(known.is_synced for known in own.kv_knowledge().values()):
            await asyncio.sleep(0.01)  # its own tasks are all there by then
        before = len(asyncio.all_tasks())
        for _ in range(5):
            other = ReplicaDispatcher(Routing(Cost()), max_waiting=1, no_replica_grace_s=5.0)
            await other.fleet.apply(fleet.registry.membership())
            while not other.is_ready():
                await asyncio.sleep(0.01)
            await other.fleet.close()

        async with asyncio.timeout(60):
            while len(asyncio.all_tasks()) > before:
                await asyncio.sleep(0.01)


async def test_a_replica_that_stops_ends_its_streams_so_that_requests_go_on_elsewhere() -> None:
    async with running_fleet(prefill=0, decode=1) as fleet:
        stopping: list[asyncio.Task[None]] = []

        def stop(num_tokens: int) -> None:
            if num_tokens >= 20 and not stopping:
                worker = fleet.replicas[ReplicaId("decode-1")].worker
                stopping.append(asyncio.create_task(worker.stop()))

        with fleet.halting_at(20):
            asking = asyncio.create_task(fleet.ask(PROMPT, LONG, on_token=stop))
            await until(lambda: not fleet.dispatcher.is_ready())
        await asyncio.sleep(0.5)  # time to connect to it again
        assert not fleet.dispatcher.is_ready()
        await asyncio.gather(*stopping)
        await fleet.crash(ReplicaId("decode-1"))
        await fleet.add(Role.DECODE)

        answer = await asking

        assert answer.tokens == expected(PROMPT, 60)
        assert answer.receipt.attempts <= 3
