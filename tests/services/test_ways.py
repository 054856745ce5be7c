"""Which way KV takes in a fleet, what is said of it, and what happens where none is allowed."""

from __future__ import annotations

from typing import Any

import pytest
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet

from baton.core.replicas import Role
from baton.engine.passes.echo import echo_output
from baton.kv_transfer.transport.auto.auto import AutoTransport
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import ReplicaStub

PROMPTS = [list(range(start, start + 40)) for start in (3, 53, 103)]


def expected(prompt: list[int]) -> list[int]:
    return echo_output(prompt, GREEDY.max_tokens, VOCAB_SIZE)


def changes(**transfer: Any) -> dict[str, Any]:
    return {f"transfer.{key}": value for key, value in transfer.items()}


async def metrics_of(fleet: Fleet, role: Role) -> dict[str, float]:
    (info,) = (r.info for r in fleet.replicas.values() if r.info.role is role)
    channels = Channels()
    reply = await ReplicaStub(channels.to(info.address)).Inspect(pb.InspectRequest())
    await channels.close()
    return {metric.name: metric.value for metric in reply.metrics}


async def test_a_fleet_of_one_host_finds_the_way_by_itself() -> None:
    async with running_fleet(changes=changes(transport="auto")) as fleet:
        (decode,) = (r for r in fleet.replicas.values() if r.info.role is Role.DECODE)

        first = await fleet.ask(PROMPTS[0])
        chooser = decode.transports.get("auto")
        assert isinstance(chooser, AutoTransport)
        await chooser.measured()
        second = await fleet.ask(PROMPTS[1])

        assert first.tokens == expected(PROMPTS[0])
        assert second.tokens == expected(PROMPTS[1])
        assert first.receipt.transport == "grpc"
        (chosen,) = (way.name for way in decode.transports.ways() if way.is_chosen)
        assert second.receipt.transport == chosen
        metrics = await metrics_of(fleet, Role.DECODE)
        assert metrics[f'transport_bytes_per_second{{transport="{chosen}"}}'] > 0
        assert metrics[f'transport_streams_total{{transport="{chosen}"}}'] >= 1
        await fleet.assert_nothing_is_held()


@pytest.mark.parametrize("name", ["shm", "tcp", "grpc", "gloo"])
async def test_what_is_required_is_used_from_the_first_request_on(name: str) -> None:
    async with running_fleet(changes=changes(transport="auto", require=[name])) as fleet:
        for prompt in PROMPTS:
            answer = await fleet.ask(prompt)

            assert answer.tokens == expected(prompt)
            assert answer.receipt.transport == name
        await fleet.assert_nothing_is_held()


async def test_a_peer_that_nothing_required_leads_to_computes_nothing() -> None:
    # Replicas of processes of their own, as far as `memory` can tell.
    async with running_fleet(changes=changes(transport="auto", require=["memory"])) as fleet:
        answer = await fleet.ask(PROMPTS[0])

        assert answer.tokens == expected(PROMPTS[0])
        assert (answer.receipt.prefill_replica, answer.receipt.kv_bytes) == ("", 0)
        (note,) = answer.receipt.notes
        assert "nothing that is required (memory) leads to" in note
        assert (await metrics_of(fleet, Role.DECODE))["transport_refused_total"] == 1
        assert (await metrics_of(fleet, Role.PREFILL))["transfers_offered_total"] == 0
        await fleet.assert_nothing_is_held()


async def test_any_replica_can_be_told_to_measure_the_way_from_any_other() -> None:
    async with running_fleet() as fleet:
        infos = [replica.info for replica in fleet.replicas.values()]
        channels = Channels()
        for receiver, sender in ((0, 1), (1, 0)):
            for transport in ("shm", "grpc"):
                reply = await ReplicaStub(channels.to(infos[receiver].address)).ProbePeer(
                    pb.ProbePeerRequest(
                        peer=pb.ReplicaAddress(
                            replica_id=infos[sender].replica_id,
                            epoch=infos[sender].epoch,
                            address=infos[sender].address,
                        ),
                        transport=transport,
                        num_bytes=4096,
                        num_rounds=3,
                    )
                )

                assert reply.error == ""
                assert len(reply.round_s) == 3
                assert 0 < reply.latency_s <= max(reply.round_s)
                assert reply.num_bytes >= 4096
        await channels.close()
        await fleet.assert_nothing_is_held()


async def test_a_way_that_cannot_be_measured_is_an_answer() -> None:
    async with running_fleet() as fleet:
        receiver, sender = (replica.info for replica in fleet.replicas.values())
        peer = pb.ReplicaAddress(epoch=sender.epoch, address=sender.address)
        stranger = pb.ReplicaAddress(epoch="0" * 32, address=sender.address)
        channels = Channels()
        stub = ReplicaStub(channels.to(receiver.address))

        for about, transport, error in (
            (peer, "pigeon", "no KV transport is called 'pigeon'"),
            (stranger, "shm", "earlier incarnation"),
            (peer, "memory", "no replica is plugged in"),
        ):
            request = pb.ProbePeerRequest(peer=about, transport=transport, num_bytes=1)
            assert error in (await stub.ProbePeer(request)).error
        await channels.close()
        await fleet.assert_nothing_is_held()
