"""A whole fleet with mutual TLS and a token, and what its operators read when one is a stranger."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import pytest
from tests.in_process_fleet import Fleet, echo_engine, running_fleet
from tests.secured_clusters import AUTHORITY, write_files

from baton.core.ids import ReplicaId
from baton.core.replicas import Role
from baton.core.wire_security import WireSecurity
from baton.gateway.fleet.dispatch import ReplicaDispatcher
from baton.platform.config.deployment import override
from baton.platform.replica.replica import start_replica
from baton.proto import replica_pb2 as pb
from baton.proto.channels import Channels
from baton.proto.replica_pb2_grpc import ReplicaStub
from baton.router.placer import Routing
from baton.router.policies.cost import Cost

PROMPT = tuple(range(40))
FOREIGN = WireSecurity(tokens=("the-token-of-another-cluster",))


def settings(folder: Path) -> dict[str, Any]:
    return {f"security.{name}": path for name, path in write_files(folder).items()}


async def status_seen_by(fleet: Fleet, security: WireSecurity) -> list[dict[str, Any]]:
    """The replicas' rows of /debug/status at another gateway."""
    gateway = ReplicaDispatcher(
        Routing(Cost(), local_prefill_tokens=0),
        max_waiting=1,
        no_replica_grace_s=1.0,
        channels=Channels(security),
    )
    await gateway.fleet.apply(fleet.registry.membership())
    try:
        pools = (await gateway.status())["pools"]
    finally:
        await gateway.fleet.close()
    return [*pools["prefill"], *pools["decode"]]


async def test_a_fleet_hands_kv_over_with_mutual_tls_and_token(tmp_path: Path) -> None:
    async with running_fleet(changes=settings(tmp_path)) as fleet:
        answer = await fleet.ask(PROMPT)
        await fleet.assert_nothing_is_held()

    async with running_fleet() as plain:
        expected = await plain.ask(PROMPT)
    assert answer.receipt.kv_bytes > 0
    assert answer.receipt.prefill_replica
    assert answer.tokens == expected.tokens


async def test_no_replica_of_it_answers_in_plain_text_or_without_the_token(tmp_path: Path) -> None:
    credentials = grpc.ssl_channel_credentials(AUTHORITY.certificate_pem)
    async with running_fleet(
        changes={**settings(tmp_path), "security.require_client_cert": False}
    ) as fleet:
        for replica in fleet.replicas.values():
            address = replica.info.address
            options = (("grpc.ssl_target_name_override", "baton"),)
            async with (
                grpc.aio.insecure_channel(address) as plain,
                grpc.aio.secure_channel(address, credentials, options) as encrypted,
            ):
                codes = [
                    await ReplicaStub(channel).Inspect(pb.InspectRequest(), timeout=120).code()
                    for channel in (plain, encrypted)
                ]
            assert codes == [grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNAUTHENTICATED]


async def test_the_status_says_that_replicas_refuse_the_token(tmp_path: Path) -> None:
    token_file = settings(tmp_path)["security.token_file"]
    async with running_fleet(changes={"security.token_file": token_file}) as fleet:
        rows = await status_seen_by(fleet, FOREIGN)

    assert len(rows) == 2
    for row in rows:
        assert not row["is_reachable"]
        assert row["trouble"].startswith("refused: this call does not carry the cluster token")


async def test_the_status_says_that_replicas_speak_tls(tmp_path: Path) -> None:
    async with running_fleet(changes=settings(tmp_path)) as fleet:
        rows = await status_seen_by(fleet, FOREIGN)

    assert all("only one side speaks TLS" in row["trouble"] for row in rows)


@pytest.mark.parametrize("default", ["none", pytest.param("ray", marks=pytest.mark.wide)])
async def test_replicas_that_accept_a_token_serve_with_those_that_ask_for_none_or_for_it(
    monkeypatch: pytest.MonkeyPatch, default: str
) -> None:
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-ray-itself")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    permissive = {"security.default_token": "permissive"}
    async with running_fleet(changes=permissive, prefill=0, decode=0) as fleet:
        accepts = fleet.config
        other = override(accepts, {"security.default_token": default})
        receipts = []
        for prefill, decode in ((accepts, other), (other, accepts)):
            fleet.config = prefill
            added = [await fleet.add(Role.PREFILL)]
            fleet.config = decode
            added.append(await fleet.add(Role.DECODE))
            await fleet.ask(PROMPT)  # one may be refused, computes itself, and knows from then on
            receipts.append((await fleet.ask(PROMPT[::-1])).receipt)
            for replica_id in added:
                await fleet.crash(replica_id)
            await fleet.sync()

    assert all(receipt.prefill_replica and receipt.kv_bytes for receipt in receipts)


async def test_requests_wait_for_replicas_that_ask_where_the_others_refuse(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rollout in one step: of the gateway first, and to its replicas none of the old belongs."""
    monkeypatch.setenv("RAY_AUTH_TOKEN", "of-ray-itself")
    monkeypatch.setenv("RAY_AUTH_MODE", "token")
    async with running_fleet(
        changes={"security.default_token": "ray"}, prefill=0, decode=0
    ) as fleet:
        older = override(fleet.config, {"security.default_token": "none"})
        engine = echo_engine(Role.DECODE)
        old = await start_replica(
            older, Role.DECODE, engine, replica_id=ReplicaId("decode-old"), host="127.0.0.1"
        )
        try:
            fleet.registry.heartbeat(old.info)
            await fleet.dispatcher.fleet.apply(fleet.registry.membership())
            asking = asyncio.create_task(fleet.ask(PROMPT))
            async with asyncio.timeout(60):
                while not old.metrics()["refused_calls_total"]:
                    await asyncio.sleep(0.01)
            is_waiting = not asking.done()
            new = await fleet.add(Role.DECODE)
            answer = await asking
        finally:
            await old.stop()

        assert fleet.replicas[new].metrics()["refused_calls_total"] == 0
    assert is_waiting
    assert answer.receipt.decode_replica == new
    assert len(answer.tokens) > 0
