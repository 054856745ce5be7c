"""A whole fleet with mutual TLS and a token, and what its operators read when one is a stranger."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import grpc
import grpc.aio
from tests.in_process_fleet import Fleet, running_fleet
from tests.secured_clusters import AUTHORITY, write_files

from baton.core.wire_security import WireSecurity
from baton.gateway.fleet.dispatch import ReplicaDispatcher
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
                    await ReplicaStub(channel).Inspect(pb.InspectRequest(), timeout=10).code()
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
