"""A peer that asks for what this replica does not know yet is refused that request alone."""

from __future__ import annotations

import grpc
import grpc.aio
import pytest
from tests.in_process_fleet import GREEDY, VOCAB_SIZE, Fleet, running_fleet

from baton.core.errors import InvalidRequest
from baton.core.ids import ReplicaId, RequestId, TransferId
from baton.core.messages import GenerateRequest, PrefillRequest, TokenUpdate
from baton.engine.passes.echo import echo_output
from baton.proto import replica_pb2 as pb
from baton.proto.channel_options import CHANNEL_OPTIONS
from baton.proto.generate_wire import generate_to_proto
from baton.proto.prefill_wire import prefill_to_proto
from baton.proto.replica_pb2_grpc import DecodeStub, PrefillStub
from baton.proto.token_update_wire import update_from_proto

PROMPT = (5, 6, 7)
UNKNOWN_GRAMMAR = pb.Grammar.FromString(b"\x08\x63")  # kind 99


def request(name: str) -> pb.GenerateRequest:
    return generate_to_proto(
        GenerateRequest(request_id=RequestId(name), attempt=1, prompt=PROMPT, sampling=GREEDY)
    )


async def updates(fleet: Fleet, *messages: pb.GenerateRequest) -> dict[str, list[TokenUpdate]]:
    """By request, until each has its last."""
    info = fleet.replicas[ReplicaId("decode-2")].info
    found: dict[str, list[TokenUpdate]] = {}
    async with grpc.aio.insecure_channel(info.address, options=CHANNEL_OPTIONS) as channel:
        call = DecodeStub(channel).Session()
        hello = pb.Hello(gateway_epoch="g", replica_epoch=info.epoch)
        await call.write(pb.GatewayFrame(hello=hello))
        for message in messages:
            await call.write(pb.GatewayFrame(generate=message))
        num_over = 0
        async for frame in call:
            for update in map(update_from_proto, frame.updates):
                found.setdefault(update.request_id, []).append(update)
                num_over += update.is_last
            if num_over == len(messages):
                return found
    raise AssertionError("the stream ended early")


async def test_a_newer_gateway_keeps_its_stream() -> None:
    strange, pooled = request("strange"), request("pooled")
    strange.sampling.grammar.CopyFrom(UNKNOWN_GRAMMAR)
    pooled.MergeFromString(b"\x50\x63")  # pooling 99
    async with running_fleet() as fleet:
        found = await updates(fleet, strange, pooled, request("known"))

        for name in ("strange", "pooled"):
            [update] = found[name]
            assert isinstance(update.error, InvalidRequest)
        tokens = [token for update in found["known"] for token in update.tokens]
        assert tokens == echo_output(PROMPT, GREEDY.max_tokens, VOCAB_SIZE)


async def test_a_newer_decode_replica_is_told_what_is_wrong() -> None:
    async with running_fleet() as fleet:
        prefill = fleet.replicas[ReplicaId("prefill-1")].info
        message = prefill_to_proto(
            PrefillRequest(
                request_id=RequestId("r"),
                transfer_id=TransferId("t"),
                receiver_epoch=prefill.epoch,
                layout=prefill.layout,
                prompt=PROMPT,
                time_left_ms=10_000,
            ),
            prefill.epoch,
        )
        message.sampling.grammar.CopyFrom(UNKNOWN_GRAMMAR)
        async with grpc.aio.insecure_channel(prefill.address, options=CHANNEL_OPTIONS) as channel:
            with pytest.raises(grpc.aio.AioRpcError) as refusal:
                await PrefillStub(channel).Prefill(message).read()

        assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
