"""The connections between our own processes: who is served, who is refused, and in which words."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.partial_replica import PartialReplica
from tests.secured_clusters import (
    AUTHORITY,
    NOW,
    OTHER_AUTHORITY,
    TOKEN,
    expired,
    security_of,
    write_files,
)

from baton.core.wire_security import PLAIN, WireSecurity
from baton.platform.security.certificate_authority import issue
from baton.platform.security.connections import load_security
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels, explain, listen, new_server
from baton.proto.replica_pb2_grpc import (
    DecodeServicer,
    DecodeStub,
    ReplicaStub,
    add_DecodeServicer_to_server,
    add_ReplicaServicer_to_server,
)


class Answering(PartialReplica, DecodeServicer):
    num_calls = 0

    async def Inspect(
        self,
        request: pb.InspectRequest,
        context: grpc.aio.ServicerContext[pb.InspectRequest, pb.InspectReply],
    ) -> pb.InspectReply:
        self.num_calls += 1
        return pb.InspectReply(replica_id="it")

    async def TakeStream(
        self,
        request: pb.TakeStreamRequest,
        context: grpc.aio.ServicerContext[pb.TakeStreamRequest, pb.ParkedStream],
    ) -> pb.ParkedStream:
        self.num_calls += 1
        return pb.ParkedStream()

    async def Session(
        self,
        request_iterator: AsyncIterator[pb.GatewayFrame],
        context: grpc.aio.ServicerContext[pb.GatewayFrame, pb.DecodeFrame],
    ) -> AsyncIterator[pb.DecodeFrame]:
        self.num_calls += 1
        async for _ in request_iterator:
            yield pb.DecodeFrame()


@asynccontextmanager
async def server_of(security: WireSecurity) -> AsyncIterator[tuple[str, Answering]]:
    server = new_server(security)
    answering = Answering()
    add_ReplicaServicer_to_server(answering, server)
    add_DecodeServicer_to_server(answering, server)
    port = listen(server, "127.0.0.1:0", security)
    await server.start()
    try:
        yield f"127.0.0.1:{port}", answering
    finally:
        await server.stop(0)


async def ask(address: str, security: WireSecurity) -> str:
    """The answer, or in which words it was refused."""
    channels = Channels(security)
    try:
        reply = await ReplicaStub(channels.to(address)).Inspect(pb.InspectRequest(), timeout=120)
    except grpc.aio.AioRpcError as error:
        return channels.explain(error)
    finally:
        await channels.close()
    return reply.replica_id


def load(folder: Path, **what: Any) -> WireSecurity:
    return load_security(security_of(folder, **what), environment={})


async def test_a_process_of_the_cluster_is_served(tmp_path: Path) -> None:
    security = load(tmp_path)

    async with server_of(security) as (address, _):
        assert await ask(address, security) == "it"


async def test_plain_text_still_works() -> None:
    async with server_of(PLAIN) as (address, _):
        assert await ask(address, PLAIN) == "it"


async def test_a_stream_is_served_over_the_same_secured_channel(tmp_path: Path) -> None:
    security = load(tmp_path)
    channels = Channels(security)
    async with server_of(security) as (address, _):
        call = DecodeStub(channels.to(address)).Session()
        await call.write(pb.GatewayFrame())
        frame = await call.read()
        await call.done_writing()

        assert frame == pb.DecodeFrame()
        assert await call.code() is grpc.StatusCode.OK
    await channels.close()


@pytest.mark.parametrize("given", ["", "the-token-of-another-cluster", TOKEN + "x", TOKEN[:-1]])
async def test_a_call_without_the_token_is_refused_before_any_work(
    tmp_path: Path, given: str
) -> None:
    security = load(tmp_path)
    stranger = replace(security, tokens=tuple(filter(None, [given])), renew=None)

    async with server_of(security) as (address, answering):
        answer = await ask(address, stranger)

    assert answer.startswith("refused: this call does not carry the cluster token")
    assert "security.token_file" in answer
    assert answering.num_calls == 0


async def test_a_stream_without_the_token_is_refused(tmp_path: Path) -> None:
    security = replace(PLAIN, tokens=(TOKEN,))
    channels = Channels()
    async with server_of(security) as (address, answering):
        call = DecodeStub(channels.to(address)).Session()
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
    await channels.close()

    assert answering.num_calls == 0


async def test_a_server_without_a_token_refuses_who_takes_it_for_another(tmp_path: Path) -> None:
    async with server_of(PLAIN) as (address, _):
        assert "cluster token" in await ask(address, replace(PLAIN, tokens=(TOKEN,)))


async def test_one_token_follows_another_without_a_pause() -> None:
    old, both, new = ("the-old-token-of-it",), ("new", "the-old-token-of-it"), ("new",)

    async with server_of(replace(PLAIN, tokens=both)) as (address, _):
        assert await ask(address, replace(PLAIN, tokens=old)) == "it"
        assert await ask(address, replace(PLAIN, tokens=new)) == "it"


async def test_who_refuses_the_first_token_is_shown_the_next() -> None:
    channels = Channels(replace(PLAIN, tokens=("", "the-token-of-it")))
    async with server_of(replace(PLAIN, tokens=("the-token-of-it",))) as (address, answering):
        stub = ReplicaStub(channels.to(address))
        call = stub.Inspect(pb.InspectRequest(), timeout=120)
        assert await call.code() is grpc.StatusCode.UNAUTHENTICATED
        await asyncio.sleep(0.01)

        for _ in range(2):
            assert (await stub.Inspect(pb.InspectRequest(), timeout=120)).replica_id == "it"
    await channels.close()
    assert answering.num_calls == 2


async def test_a_server_of_another_authority_is_not_spoken_to(tmp_path: Path) -> None:
    ours, theirs = load(tmp_path / "a"), load(tmp_path / "b", authority=OTHER_AUTHORITY)

    async with server_of(theirs) as (address, answering):
        answer = await ask(address, ours)

    assert answer.startswith("the peer's certificate is not of our authority")
    assert answering.num_calls == 0


async def test_a_client_of_another_authority_is_not_served(tmp_path: Path) -> None:
    ours = load(tmp_path)
    foreign = issue(OTHER_AUTHORITY, "baton", NOW, 1)
    stranger = replace(
        ours, certificate_pem=foreign.certificate_pem, key_pem=foreign.key_pem, renew=None
    )

    async with server_of(ours) as (address, answering):
        answer = await ask(address, stranger)

    assert "refuses our certificate" in answer
    assert answering.num_calls == 0


async def test_a_client_without_a_certificate_is_served_only_where_none_is_required(
    tmp_path: Path,
) -> None:
    mutual = load(tmp_path)
    one_sided = replace(mutual, checks_clients=False)
    credentials = grpc.ssl_channel_credentials(AUTHORITY.certificate_pem)
    options = (("grpc.ssl_target_name_override", "baton"),)
    metadata = (("baton-cluster-token", TOKEN),)

    async def ask_without(address: str) -> grpc.StatusCode:
        async with grpc.aio.secure_channel(address, credentials, options) as channel:
            call = ReplicaStub(channel).Inspect(pb.InspectRequest(), metadata=metadata, timeout=60)
            return await call.code()

    async with server_of(mutual) as (address, _):
        assert await ask_without(address) is grpc.StatusCode.UNAVAILABLE
    async with server_of(one_sided) as (address, _):
        assert await ask_without(address) is grpc.StatusCode.OK


async def test_an_expired_server_is_told_apart(tmp_path: Path) -> None:
    ours, late = load(tmp_path), expired()
    aged = replace(ours, certificate_pem=late.certificate_pem, key_pem=late.key_pem, renew=None)

    async with server_of(aged) as (address, _):
        assert (await ask(address, ours)).startswith("the peer's certificate has expired")


async def test_plain_text_and_tls_do_not_understand_each_other(tmp_path: Path) -> None:
    ours = load(tmp_path)

    async with server_of(ours) as (address, _):
        assert "only one side speaks TLS" in await ask(address, replace(PLAIN, tokens=(TOKEN,)))
    async with server_of(replace(PLAIN, tokens=(TOKEN,))) as (address, _):
        assert "does not speak TLS" in await ask(address, ours)


async def test_a_renewed_certificate_is_used_by_both_sides_without_a_restart(
    tmp_path: Path,
) -> None:
    ours = load(tmp_path)
    channels = Channels(ours)
    async with server_of(ours) as (address, _):
        stub = ReplicaStub(channels.to(address))
        assert (await stub.Inspect(pb.InspectRequest())).replica_id == "it"

        write_files(tmp_path, authority=OTHER_AUTHORITY)  # who sticks to the old one is refused
        reply = await stub.Inspect(pb.InspectRequest())
        old = replace(ours, renew=None)

        assert reply.replica_id == "it"
        assert "not of our authority" in await ask(address, old)
    await channels.close()


def test_where_nobody_speaks_tls_a_refused_connection_says_nothing_of_certificates() -> None:
    text = "failed to connect to all addresses; last error: Socket closed"
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), text
    )

    assert "certificate" in explain(error, is_secured=True)
    assert "certificate" not in (plain := explain(error, is_secured=False))
    assert "it speaks TLS and this process does not" in plain


@pytest.mark.parametrize("text", ["Socket closed", "Stream removed (Socket closed)"])
def test_a_peer_that_ends_after_the_handshake_says_nothing_of_certificates(text: str) -> None:
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE, grpc.aio.Metadata(), grpc.aio.Metadata(), text
    )

    assert explain(error, is_secured=True) == f"the peer hung up: it has just ended ({text})"
