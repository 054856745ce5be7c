"""What a decode replica promises the gateways on its streams. Real replicas, spoken to directly."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import grpc
import grpc.aio
import pytest
from tests.gateway.fleet.scripted_replica import until
from tests.in_process_fleet import VOCAB_SIZE, Fleet, running_fleet

from baton.core.errors import Cancelled
from baton.core.ids import RequestId, new_epoch
from baton.core.messages import GenerateRequest, TokenUpdate
from baton.core.replicas import ReplicaInfo
from baton.core.sampling import SamplingParams
from baton.engine.passes.echo import echo_output
from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import CHANNEL_OPTIONS
from baton.proto.generate_wire import generate_to_proto
from baton.proto.replica_pb2_grpc import DecodeStub
from baton.proto.token_update_wire import update_from_proto

PROMPT = tuple(range(3, 14))
ENDLESS = 1500
"""Tokens of a request that will not end by itself while a test looks."""


def request(name: str = "r", *, attempt: int = 1, num_tokens: int = 12) -> GenerateRequest:
    return GenerateRequest(
        request_id=RequestId(name),
        attempt=attempt,
        prompt=PROMPT,
        sampling=SamplingParams(temperature=0.0, max_tokens=num_tokens),
    )


def expected(num_tokens: int = 12) -> list[int]:
    return echo_output(PROMPT, num_tokens, VOCAB_SIZE)


class Stream:
    """A gateway's end of a session."""

    def __init__(
        self, info: ReplicaInfo, *, gateway: str | None = None, epoch: str | None = None
    ) -> None:
        self.updates: list[TokenUpdate] = []
        self.capacities: list[pb.Capacity] = []
        self._channel = grpc.aio.insecure_channel(info.address, options=CHANNEL_OPTIONS)
        self.call = DecodeStub(self._channel).Session()
        self._hello = pb.Hello(
            gateway_epoch=gateway or new_epoch(), replica_epoch=epoch or info.epoch
        )
        self._reader: asyncio.Task[None] | None = None

    async def open(self) -> None:
        await self.call.write(pb.GatewayFrame(hello=self._hello))
        self._reader = asyncio.create_task(self._read())

    async def close(self) -> None:
        self.call.cancel()
        if self._reader is not None:
            await asyncio.gather(self._reader, return_exceptions=True)
        await self._channel.close()

    async def generate(self, message: GenerateRequest) -> None:
        await self.call.write(pb.GatewayFrame(generate=generate_to_proto(message)))

    async def cancel(self, name: str, attempt: int, num_delivered: int = 0) -> None:
        cancel = pb.Cancel(request_id=name, attempt=attempt, num_delivered=num_delivered)
        await self.call.write(pb.GatewayFrame(cancel=cancel))

    async def go_by_the_last_credit(self) -> None:
        demand = pb.Demand(credit_id=self.capacities[-1].credit_id)
        await self.call.write(pb.GatewayFrame(demand=demand))

    def tokens(self, attempt: int = 1) -> list[int]:
        return [token for u in self.updates if u.attempt == attempt for token in u.tokens]

    def last(self, name: str = "r", attempt: int = 1) -> TokenUpdate | None:
        found = [u for u in self.updates if (u.request_id, u.attempt) == (name, attempt)]
        return next((u for u in found if u.is_last), None)

    async def _read(self) -> None:
        async for frame in self.call:
            self.updates += [update_from_proto(update) for update in frame.updates]
            if frame.HasField("capacity"):
                self.capacities.append(frame.capacity)


@asynccontextmanager
async def stream_to(fleet: Fleet, gateway: str | None = None) -> AsyncIterator[Stream]:
    stream = Stream(fleet.replicas["decode-1"].info, gateway=gateway)  # type: ignore[index]
    await stream.open()
    try:
        yield stream
    finally:
        await stream.close()


def metric(fleet: Fleet, name: str) -> float:
    return fleet.replicas["decode-1"].worker.metrics()[name]  # type: ignore[index]


async def test_an_attempt_that_is_sent_twice_is_done_once() -> None:
    async with running_fleet(prefill=0) as fleet, stream_to(fleet) as stream:
        await stream.generate(request())
        await stream.generate(request())
        await until(stream.last)
        await stream.generate(request())  # late: it is over already
        await stream.generate(request("another"))
        await until(lambda: stream.last("another"))

        assert [u.is_last for u in stream.updates if u.request_id == "r"].count(True) == 1
        assert [t for u in stream.updates if u.request_id == "r" for t in u.tokens] == expected()
        assert metric(fleet, "tokens_sampled_total") == 2 * 12
        await fleet.assert_nothing_is_held()


async def test_a_lower_attempt_is_refused_and_disturbs_nothing() -> None:
    async with running_fleet(prefill=0) as fleet, stream_to(fleet) as stream:
        await stream.generate(request(attempt=2, num_tokens=100))

        await stream.generate(request(attempt=1, num_tokens=100))
        await until(lambda: stream.last(attempt=2))

        refusal = stream.last(attempt=1)
        assert refusal is not None
        assert isinstance(refusal.error, Cancelled)
        assert str(refusal.error) == "attempt 1 came after attempt 2"
        assert stream.tokens(attempt=1) == []
        assert stream.tokens(attempt=2) == expected(100)


async def test_a_higher_attempt_takes_the_place_of_a_lower_one_which_says_nothing_more() -> None:
    async with running_fleet(prefill=0) as fleet, stream_to(fleet) as stream:
        await stream.generate(request(attempt=1, num_tokens=ENDLESS))
        await until(lambda: stream.tokens(attempt=1))

        await stream.generate(request(attempt=2))
        await until(lambda: stream.last(attempt=2))

        assert stream.last(attempt=1) is None
        attempts = [u.attempt for u in stream.updates]
        assert attempts == sorted(attempts)
        assert stream.tokens(attempt=2) == expected()
        await fleet.assert_nothing_is_held()


async def test_a_higher_attempt_fences_a_lower_one_of_another_gateway() -> None:
    async with (
        running_fleet(prefill=0) as fleet,
        stream_to(fleet) as one,
        stream_to(fleet) as other,
    ):
        await one.generate(request(attempt=1, num_tokens=ENDLESS))
        await until(lambda: one.tokens(attempt=1))

        await other.generate(request(attempt=2))
        await until(lambda: other.last(attempt=2))

        assert one.last(attempt=1) is None
        assert other.tokens(attempt=2) == expected()
        await fleet.assert_nothing_is_held()


async def test_a_continuation_samples_only_what_is_missing() -> None:
    async with running_fleet(prefill=0) as fleet, stream_to(fleet) as stream:
        await stream.generate(replace(request(attempt=2), output=tuple(expected(5))))
        await until(lambda: stream.last(attempt=2))

        assert stream.tokens(attempt=2) == expected()[5:]


async def test_a_cancel_frees_the_request_and_books_what_was_delivered() -> None:
    async with running_fleet(prefill=0) as fleet, stream_to(fleet) as stream:
        await stream.generate(request(num_tokens=ENDLESS))
        await until(lambda: len(stream.tokens()) >= 3)

        await stream.cancel("r", 1, num_delivered=3)

        await until(lambda: metric(fleet, "requests_open") == 0)
        await fleet.assert_nothing_is_held()
        assert metric(fleet, "tokens_delivered_total") == 3
        assert metric(fleet, "tokens_sampled_total") < ENDLESS


async def test_a_cancel_of_something_else_changes_nothing() -> None:
    async with running_fleet(prefill=0) as fleet, stream_to(fleet) as stream:
        await stream.cancel("unknown", 1)
        await stream.generate(request(attempt=2))
        await stream.cancel("r", 1)
        await until(lambda: stream.last(attempt=2))
        await stream.cancel("r", 2)

        assert stream.tokens(attempt=2) == expected()


async def test_when_a_stream_ends_its_requests_end_and_those_of_others_go_on() -> None:
    async with running_fleet(prefill=0) as fleet, stream_to(fleet) as staying:
        await staying.generate(request("stays", num_tokens=200))
        async with stream_to(fleet) as leaving:
            await leaving.generate(request("leaves", num_tokens=ENDLESS))
            await until(leaving.tokens)

        await until(lambda: staying.last("stays"))

        assert [t for u in staying.updates for t in u.tokens] == expected(200)
        await until(lambda: metric(fleet, "requests_open") == 0)
        await fleet.assert_nothing_is_held()


async def test_a_gateway_that_comes_anew_has_given_its_earlier_stream_up() -> None:
    async with running_fleet(prefill=0) as fleet, stream_to(fleet, "g") as earlier:
        await earlier.generate(request(num_tokens=ENDLESS))
        await until(earlier.tokens)

        async with stream_to(fleet, "g") as later:
            async with asyncio.timeout(120):
                await earlier.call.code()  # it ends
            await until(lambda: metric(fleet, "requests_open") == 0)
            await later.generate(request("again"))
            await until(lambda: later.last("again"))

        await fleet.assert_nothing_is_held()


async def test_places_are_lent_where_requests_wait_and_shared_while_none_do() -> None:
    changes = {"decode.max_open": 12}
    async with running_fleet(prefill=0, changes=changes) as fleet, stream_to(fleet) as one:
        [link] = fleet.dispatcher.fleet.connected

        def places() -> tuple[int, int]:
            assert link.capacity is not None
            return link.capacity.max_open, one.capacities[-1].max_open if one.capacities else 0

        await until(lambda: places() == (6, 6))
        await one.go_by_the_last_credit()
        link.demand.want(20, 0)
        await until(lambda: places()[1] == 1)
        assert places() == (6, 1)  # may have been used before this was heard
        await one.go_by_the_last_credit()
        await until(lambda: places() == (11, 1))


async def test_a_gateway_that_means_another_incarnation_is_refused() -> None:
    async with running_fleet(prefill=0) as fleet:
        info = fleet.replicas["decode-1"].info  # type: ignore[index]
        stream = Stream(info, epoch="an earlier one")
        await stream.open()

        with pytest.raises(grpc.aio.AioRpcError, match="another incarnation"):
            async for _ in stream.call:
                pass

        assert await stream.call.code() is grpc.StatusCode.FAILED_PRECONDITION
        await stream.close()
