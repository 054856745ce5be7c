"""What prefill replicas lend to gateways, over real streams and by their own arithmetic."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc
import grpc.aio
import pytest
from tests.gateway.fleet.known_replicas import LAYOUT
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import Fleet, running_fleet

from baton.core.errors import Unavailable
from baton.core.ids import Epoch, ReplicaId, RequestId, TransferId
from baton.core.messages import PrefillRequest
from baton.core.replicas import Capacity, Demand, ReplicaInfo, Role
from baton.core.step_times import StepTimes
from baton.gateway.fleet.links.prefill_link import PrefillLink
from baton.gateway.fleet.links.replica_link import Listener
from baton.prefill_service.lending import MIN_CHUNKS, Lending, lending_budget
from baton.prefill_service.open_prompts import OpenPrompts
from baton.prefill_service.session import PrefillSession
from baton.prefill_service.worker import PrefillWorker
from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import CHANNEL_OPTIONS
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import PrefillStub
from baton.router.cache.prompt_names import PromptNames

CHUNK = 100


class Gateway:
    """Another gateway's link to a replica, and what it has heard."""

    def __init__(self, info: ReplicaInfo, name: str = "another") -> None:
        nobody = Listener(on_change=lambda: None, on_repeat=lambda: None)
        self.link = PrefillLink(info, Epoch(name), nobody, Channels())

    @property
    def credit(self) -> int:
        return 0 if self.link.capacity is None else self.link.capacity.credit_tokens


@asynccontextmanager
async def gateway_to(info: ReplicaInfo, name: str = "another") -> AsyncIterator[Gateway]:
    gateway = Gateway(info, name)
    try:
        await until(lambda: gateway.link.is_connected)
        yield gateway
    finally:
        await gateway.link.close()


def own_link(fleet: Fleet) -> PrefillLink:
    [link] = fleet.dispatcher.fleet.lending
    return link


def own_credit(fleet: Fleet) -> int:
    [replica] = fleet.dispatcher.fleet.view(PromptNames()).prefill
    return replica.candidate.credit_tokens or 0


async def test_a_gateway_has_all_until_another_comes_and_again_when_it_is_gone() -> None:
    async with running_fleet(decode=0) as fleet:
        link = own_link(fleet)
        budget = MIN_CHUNKS * link.info.max_chunk
        await until(lambda: own_credit(fleet) == budget)

        async with gateway_to(link.info) as other:
            await until(lambda: own_credit(fleet) == other.credit == budget // 2)
            other.link.demand.want(0, 2 * budget)
            await until(lambda: other.credit > 0.9 * budget)
            assert 0 < own_credit(fleet) < 0.1 * budget

        await until(lambda: own_credit(fleet) == budget)


async def test_while_a_replica_is_away_nobody_waits_for_it_and_another_one_is_met() -> None:
    async with running_fleet(decode=0) as fleet:
        own = own_link(fleet)
        await until(lambda: own.capacity and own.capacity.num_blocks)
        await fleet.replicas[ReplicaId("prefill-1")].server.stop(grace_s=0)
        await until(lambda: not own.is_connected)

        assert not fleet.dispatcher.fleet.view(PromptNames()).prefill

        await fleet.crash(ReplicaId("prefill-1"))
        await fleet.add(Role.PREFILL)  # which waits for its link
        [new] = (link for link in fleet.dispatcher.fleet.lending if link is not own)
        await until(lambda: new.capacity and new.capacity.credit_tokens)


async def test_a_gateway_that_means_another_incarnation_is_lent_nothing() -> None:
    async with running_fleet(decode=0) as fleet:
        address = own_link(fleet).info.address
        async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
            call = PrefillStub(channel).Session()
            hello = pb.Hello(gateway_epoch="g", replica_epoch="an earlier one")
            await call.write(pb.GatewayFrame(hello=hello))

            with pytest.raises(grpc.aio.AioRpcError, match="another incarnation"):
                await call.read()


class Told(PrefillSession):
    """Remembers what it was to send."""

    def put_capacity(self, capacity: Capacity) -> None:
        self.capacity = capacity


class Lent:
    """A replica's lending to some gateways, without streams."""

    def __init__(self, *names: str) -> None:
        self.prompts = OpenPrompts(max_queued_tokens=10_000)
        self.room: int | None = None
        self.lending = Lending(self.prompts, CHUNK, lambda: self.room)
        self.sessions = {name: Told(Epoch(name), StepTimes) for name in names}
        for session in self.sessions.values():
            self.lending.join(session)

    def told(self) -> dict[str, int]:
        """What each gateway may have by now, as all have heard."""
        for _ in range(3):
            self.lending.publish(Capacity(), now=0.0)
            for session in self.sessions.values():
                self.lending.observe(session, Demand(credit_id=session.capacity.credit_id))
        return {name: session.capacity.credit_tokens for name, session in self.sessions.items()}


def prompt(num_tokens: int, gateway: str) -> PrefillRequest:
    return PrefillRequest(
        request_id=RequestId("r"),
        transfer_id=TransferId(f"t{num_tokens}"),
        receiver_epoch=Epoch("d"),
        layout=LAYOUT,
        prompt=tuple(range(num_tokens)),
        gateway_epoch=Epoch(gateway),
        time_left_ms=1000,
    )


def test_what_is_computed_of_a_prompt_makes_room_for_the_next_before_it_is_over() -> None:
    lent = Lent("g")
    assert lent.told() == {"g": 2 * CHUNK}

    opened = lent.prompts.admit(prompt(180, "g"))
    opened.request.num_computed = CHUNK
    assert lent.told() == {"g": 3 * CHUNK}

    opened.is_computed = True  # the gateway has its first token, and counts it no more
    assert lent.told() == {"g": 2 * CHUNK}


def test_what_a_gateway_has_queued_is_not_lent_to_another() -> None:
    lent = Lent("sends", "other")
    lent.prompts.admit(prompt(150, "sends"))

    told = lent.told()

    assert told["sends"] >= 150
    assert told["other"] <= 50


def test_what_could_not_be_held_until_it_is_fetched_is_not_lent() -> None:
    lent = Lent("one", "other")
    assert lent.told() == {"one": CHUNK, "other": CHUNK}

    lent.room = 60  # computed prompts hold the rest of the share
    assert sum(lent.told().values()) <= 60
    lent.room = 0
    assert lent.told() == {"one": 1, "other": 1}  # too little for any prompt

    lent.room = None  # decode replicas have fetched all of it
    assert lent.told() == {"one": CHUNK, "other": CHUNK}


def test_a_fast_replica_lends_as_much_as_it_computes_in_a_quarter_of_a_second() -> None:
    fast = StepTimes(constant_s=0.001, token_s=1e-5, num_prompt_steps=9)

    assert lending_budget(StepTimes(), CHUNK, 10_000) == 2 * CHUNK
    assert lending_budget(fast, CHUNK, 100_000) == 12_500
    assert lending_budget(fast, CHUNK, 4_000) == 4_000


async def test_a_gateway_that_comes_anew_is_lent_all_and_its_earlier_stream_ends() -> None:
    lent = Lent("g")
    again = Told(Epoch("g"), StepTimes)

    lent.lending.join(again)
    lent.lending.publish(Capacity(), now=0.0)

    assert again.capacity.credit_tokens == 2 * CHUNK
    assert await lent.sessions["g"].next_capacity() is None
    lent.lending.leave(lent.sessions["g"])  # its stream has ended meanwhile


async def test_a_replica_that_has_stopped_lends_to_nobody() -> None:
    async with running_fleet(decode=0) as fleet:
        worker = fleet.replicas[ReplicaId("prefill-1")].worker
        assert isinstance(worker, PrefillWorker)
        await worker.stop()

        with pytest.raises(Unavailable, match="shutting down"):
            worker.open_session(Epoch("late"))
