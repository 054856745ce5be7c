"""How a decode replica reads the events of a prefill call. A scripted server, real gRPC."""

from __future__ import annotations

from collections.abc import AsyncIterator

import grpc
import grpc.aio
from tests.gateway.fleet.known_replicas import make_replica

from baton.core.ids import RequestId, TransferId
from baton.core.messages import PrefillDone, PrefillGranted, PrefillRequest
from baton.core.replicas import ReplicaAddress
from baton.decode_service.prefill_client import GrpcPrefillClient
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.kv_wire import layout_to_proto
from baton.proto.replica_pb2_grpc import PrefillServicer, add_PrefillServicer_to_server

P = make_replica("p")


class NewerReplica(PrefillServicer):
    """Says, between what we know, something that we do not."""

    async def Prefill(
        self,
        request: pb.PrefillRequest,
        context: grpc.aio.ServicerContext[pb.PrefillRequest, pb.PrefillEvent],
    ) -> AsyncIterator[pb.PrefillEvent]:
        yield pb.PrefillEvent(
            granted=pb.PrefillGranted(num_tokens=3, layout=layout_to_proto(P.layout))
        )
        yield pb.PrefillEvent()
        yield pb.PrefillEvent(done=pb.PrefillDone(token=7))

    Session = PrefillServicer.Session


async def test_an_event_of_a_newer_replica_is_not_taken_for_a_first_token() -> None:
    server = grpc.aio.server()
    add_PrefillServicer_to_server(NewerReplica(), server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    channels = Channels()
    client = GrpcPrefillClient(channels)
    peer = ReplicaAddress(replica_id=P.replica_id, epoch=P.epoch, address=f"127.0.0.1:{port}")
    request = PrefillRequest(
        request_id=RequestId("r"),
        transfer_id=TransferId("t"),
        receiver_epoch=P.epoch,
        layout=P.layout,
        prompt=(1, 2, 3),
        time_left_ms=10_000,
    )

    events = [event async for event in client.prefill(peer, request)]

    assert [type(event) for event in events] == [PrefillGranted, PrefillDone]
    assert isinstance(events[-1], PrefillDone)
    assert events[-1].token == 7
    await channels.close()
    await server.stop(None)
